"""Tables and plots of the documentation, written from results/."""
