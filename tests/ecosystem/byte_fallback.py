"""Tokenizers as Llama 2 has them: a SentencePiece model, and a tokenizer.json with byte_fallback."""


def byte_fallback_json(model, path):
    """The tokenizer.json that such a tokenizer.model is converted to."""
    import sentencepiece
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
    pieces = sentencepiece.SentencePieceProcessor(model_file=model)
    vocabulary = {pieces.id_to_piece(i): i for i in range(len(pieces))}
    merges = sorted((i, piece[:cut], piece[cut:]) for piece, i in vocabulary.items() for cut in range(1, len(piece))
                    if piece[:cut] in vocabulary and piece[cut:] in vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, [(left, right) for _, left, right in merges], unk_token="<unk>",
                                     fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    tokenizer.save(path)
