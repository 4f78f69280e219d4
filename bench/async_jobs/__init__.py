"""Jobs of asynchronous SGD that change their workers while they run: schedulers live on the lab, and predicted."""
