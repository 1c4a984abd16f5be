"""Operations to bytes and bytes to answers: JSON, its quirks, signatures.

Nothing here does input or output.
"""
