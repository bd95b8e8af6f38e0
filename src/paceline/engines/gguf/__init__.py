"""GGUF models through llama.cpp's C API."""
