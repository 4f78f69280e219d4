"""Does the backend do what plain Gloo does? The suite of the torch wheel, and a list of uses compared one by one."""
