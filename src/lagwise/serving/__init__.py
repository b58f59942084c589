"""Text generation server: continuous batching (`scheduler`), OpenAI's formats (`protocol`) and HTTP (`app`)."""
