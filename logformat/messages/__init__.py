"""Records of Kafka's own topics, and the generated messages in them."""
