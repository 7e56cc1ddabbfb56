"""The study: stages, budget, strategy and the controller's loop."""
