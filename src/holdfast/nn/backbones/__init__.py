"""Backbones: each says its width and prepares raw examples into inputs."""
