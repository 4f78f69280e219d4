"""Commands about asynchronous SGD with a parameter server."""
