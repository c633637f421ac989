"""The nn.Modules: dual encoder, cross-encoder, query generator, GNN."""
