"""Close relatives of the TTT layer from other texts, each as a naive form; nothing else here uses them."""
