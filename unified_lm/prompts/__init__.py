"""Templates, conversations and instructions: from text to tokens."""
