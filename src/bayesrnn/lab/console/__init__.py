"""What commands share: errors as one line, the console, and progress of training."""
