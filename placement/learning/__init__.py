"""Policies for jobs that slow each other down, learned in the simulator; needs the extra `learning`."""
