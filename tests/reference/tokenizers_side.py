#!/usr/bin/env python3
"""Makes small tokenizers with Hugging Face's library, as GPT-2, Llama 3 and Qwen have them, and ids of texts.

    tokenizers_side.py golden FOLDER      the files of tests/data/tokenizers: three small tokenizers and golden.json
    tokenizers_side.py large FOLDER       three larger ones and 10 MB of mixed text: documents.txt, and the library's ids of it

The text is code, CJK, emoji, combining marks, runs of spaces, digits, random characters of all planes, and bytes that are not UTF-8,
which Python reads with errors="replace". Numbers are from a fixed seed. ids: int32 of the machine, a count before each document.
"""
import array
import json
import pathlib
import random
import sys
import time

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Patterns as in the files of meta-llama/Meta-Llama-3-8B and Qwen/Qwen2.5-7B.
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3_WORDS = WORDS % r"\p{N}{1,3}"
QWEN_WORDS = WORDS % r"\p{N}"
MARKER = "%"  # the line between documents
PLANES = [(1, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x1FFFF), (0x20000, 0x2FFFF), (0x30000, 0x3FFFF)]
BROKEN = [b"\xff", b"\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xe0\x80"]


def bpe(words=None):
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)
    tokenizer.pre_tokenizer = byte_level if words is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(words), "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def learn(tokenizer, vocabulary, texts):
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))


def gpt2(vocabulary, texts):
    tokenizer = bpe()
    learn(tokenizer, vocabulary, texts)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def llama3(vocabulary, texts):
    tokenizer = bpe(LLAMA3_WORDS)
    learn(tokenizer, vocabulary, texts)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    file = json.loads(tokenizer.to_str())
    file["model"]["ignore_merges"] = True
    # A word that no merges lead to, as some of Llama 3's.
    merged = {left + right for left, right in file["model"]["merges"]}
    file["model"]["merges"] = [merge for merge in file["model"]["merges"] if "".join(merge) != max(merged, key=len)]
    tokenizer = Tokenizer.from_str(json.dumps(file))
    begin = "<|begin_of_text|>"
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1",
                                      special_tokens=[(begin, tokenizer.token_to_id(begin))])])
    return tokenizer


def qwen(vocabulary, texts):
    tokenizer = bpe(QWEN_WORDS)
    tokenizer.normalizer = normalizers.NFC()
    learn(tokenizer, vocabulary, texts)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<tool_call>", AddedToken("<think>", normalized=False), AddedToken("<e\u0301>", normalized=True),
                          AddedToken("<|fim|>", lstrip=True, rstrip=True, normalized=False)])
    return tokenizer


TOKENIZERS = {"gpt2": gpt2, "llama3": llama3, "qwen": qwen}


class Text:
    """Random text of many kinds."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.kinds = [self.han, self.kana, self.emoji, self.marks, self.any, self.blanks, self.digits, self.quirks, self.hangul]

    def characters(self, first, last, count):
        return "".join(chr(self.random.randint(first, last)) for _ in range(count))

    def han(self):
        common = "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会"
        return "".join(self.random.choice(common) + ("，" if self.random.random() < 0.1 else "") for _ in range(80))

    def kana(self):
        return "".join(self.characters(0x3041, 0x3096, 5) + self.characters(0x4E00, 0x9FFF, 2) + self.characters(0x30A1, 0x30FA, 3)
                       for _ in range(8))

    def hangul(self):
        return self.characters(0xAC00, 0xD7A3, 20) + " " + self.characters(0x1100, 0x11FF, 20)

    def emoji(self):
        return " ".join(self.random.choice(["👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "👍🏽", "☺️", "😀😁", "❤️‍🔥", "🧑🏿‍🚀", "#️⃣"]) for _ in range(12))

    def marks(self):
        return "".join(self.random.choice("aeioucnAEO") + self.characters(0x300, 0x36F, self.random.randint(0, 4)) for _ in range(30))

    def any(self):
        characters = (chr(self.random.randint(*self.random.choice(PLANES))) for _ in range(80))
        return "".join(c for c in characters if not 0xD800 <= ord(c) < 0xE000)

    def blanks(self):
        blanks = [" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2003", "\u0085", "\u180e", "\u200b", "x", "7"]
        return "".join(self.random.choice(blanks) * self.random.randint(1, 9) for _ in range(24))

    def digits(self):
        numbers = " ".join(str(self.random.randrange(10**self.random.randint(1, 30))) for _ in range(8))
        return numbers + self.characters(0x660, 0x669, 5) + "½²Ⅷ"

    def quirks(self):
        return ("it's IT'S we'RE I'LL can'T 'ſ ’s don't'd 'x <|endoftext|> <|im_start|>user\n<think>  <tool_call><e\u0301> "
                "<|begin_of_text|><|eot_id|> <|fim|> <|endof <think <é> \u0301<|fim|>a" + "-" * 300)

    def broken(self, data):
        """With bytes in it that are not UTF-8."""
        data = bytearray(data)
        for _ in range(self.random.randint(0, 6)):
            at = self.random.randrange(len(data))
            data[at:at + 1] = self.random.choice(BROKEN)
        return bytes(data)

    def mixed(self, code, num_kinds):
        parts = "\n".join(self.random.choice(self.kinds)() for _ in range(num_kinds))
        return self.broken((code[:len(code) // 2] + parts + code[len(code) // 2:]).encode())


def sources():
    """Code and prose of this repository, in pieces."""
    files = sorted(path for pattern in ("src/**/*.cpp", "scripts/*.py", "docs/*.md") for path in ROOT.glob(pattern))
    texts = [path.read_text() for path in files]
    return [text[i:i + 3000] for text in texts for i in range(0, len(text), 3000)]


def decoded(data):
    return data.decode("utf-8", "replace")


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def save(tokenizer, path):
    path.write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")


def write_golden(folder):
    text = Text(11)
    cases = [text.broken((kind() + " ").encode()) for kind in text.kinds for _ in range(2)]
    cases += [code[:700].encode() for code in sources()[:3]] + [b"a" * 200, b" " * 40 + b"x", b"\xff", "e\u0301".encode()]
    learnt = [decoded(case) for case in cases] * 2 + sources()[:40]
    golden = {"hex": [case.hex() for case in cases]}
    for name, make in TOKENIZERS.items():
        tokenizer = make(640, learnt)
        (folder / name).mkdir(parents=True, exist_ok=True)
        save(tokenizer, folder / name / "tokenizer.json")
        golden[name] = [ids_of(tokenizer, decoded(case)) for case in cases]
    (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")).replace("],", "],\n") + "\n")


def all_characters():
    """Every code point of the planes in use, between letters, digits and marks, which shows how words are cut and marks ordered."""
    points = [c for c in [*range(1, 0x34000), *range(0xE0000, 0xE0200)] if not 0xD800 <= c < 0xE000 and c not in (0x0A, 0x0D)]
    return ["".join(f"a{chr(c)}a1{chr(c)}1 {chr(c)}e\u0345{chr(c)}\u0334" for c in points[i:i + 512])
            for i in range(0, len(points), 512)]


def write_large(folder):
    text = Text(7)
    documents = [text.mixed(code, 8) for code in sources()]
    pieces = list(documents)
    while sum(map(len, documents)) < 10_000_000:
        documents.append(text.broken(text.random.choice(pieces)))
    documents = [data.replace(b"\n%\n", b"\n") for data in documents]
    learnt = [decoded(data) for data in documents[:300]]
    documents += [characters.encode() for characters in all_characters()]
    # The same rules as of `braid tokenize`: line ends around a document belong to none.
    texts = [decoded(data).strip("\r\n") for data in documents]
    (folder / "documents.txt").write_bytes(f"\n{MARKER}\n".encode().join(documents) + b"\n")
    for name, make in TOKENIZERS.items():
        tokenizer = make(8000, learnt)
        (folder / name).mkdir()
        save(tokenizer, folder / name / "tokenizer.json")
        ids = array.array("i")
        begin = time.monotonic()
        for document in texts:
            encoded = ids_of(tokenizer, document)
            ids.append(len(encoded))
            ids.extend(encoded)
        print(f"{name}: {len(ids) / (time.monotonic() - begin):.0f} tokens/s by the library")
        (folder / f"{name}.ids").write_bytes(ids.tobytes())


if __name__ == "__main__":
    {"golden": write_golden, "large": write_large}[sys.argv[1]](pathlib.Path(sys.argv[2]))
