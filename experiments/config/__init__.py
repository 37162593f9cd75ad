"""From a command line to one composed, checked and identified configuration."""
