"""The place of compressors until 0.3; they are in ``exchange.compression``."""

from fedjax_alg.exchange.compression import Compression, Compressor, compressed

__all__ = ["Compression", "Compressor", "compressed"]
