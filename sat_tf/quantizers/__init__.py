"""What varies between methods: one file a quantizer, and their table."""
