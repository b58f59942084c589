"""A server of texts: one running batch (`scheduler`), OpenAI's formats (`protocol`), HTTP (`app`)."""
