"""First answers: linear models of fixed features, fitted in closed form, as Hugging Face classes."""
