"""Traffic control (tc): the qdiscs of paced interfaces, messages that change them, and events of other changes."""
