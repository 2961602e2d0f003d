//! Which errors of the edge's model server are samples for the cloud: those of its capacity or
//! capability. What is the client's own mistake would be one there as well. Pure.

use crate::config::Protocol;

/// Too large or too much for it, a failure in its model, and what it does not implement.
const STATUSES: [u16; 5] = [413, 429, 500, 501, 507];

/// Texts of language models' servers, in lower case: a prompt longer than the context, and images,
/// audio or tools for a model without them.
const OPENAI: [&str; 17] = [
    // llama.cpp
    "exceed_context_size_error",
    "exceeds the available context size",
    "too large to process",
    "image input is not supported",
    "audio input is not supported",
    "video input is not supported",
    // OpenAI, vLLM, Ollama
    "context_length_exceeded",
    "maximum context length",
    "longer than the maximum model length",
    "is not a multimodal model",
    "at most 0 image",
    "at most 0 audio",
    "at most 0 video",
    "does not support tools",
    // SGLang
    "longer than the model's context length",
    // Several
    "exceeds context length",
    "prompt is too long",
];
/// Texts of Triton about a batch above the model's `max_batch_size`.
const OIP: [&str; 1] = ["batch-size must be <="];
/// Texts of TensorFlow Serving about a batch above `max_batch_size`.
const TFSERVING: [&str; 1] = ["larger than maximum input batch size"];

/// Whether the cloud may answer instead. `status` is that of HTTP; of gRPC, the one with the same
/// meaning. `text` is the body, or the message of gRPC.
pub fn is_for_cloud(protocol: Protocol, status: u16, text: &[u8]) -> bool {
    if STATUSES.contains(&status) {
        return true;
    }
    if !matches!(status, 400 | 422) {
        return false;
    }
    let texts: &[&str] = match protocol {
        Protocol::Openai => &OPENAI,
        Protocol::Oip => &OIP,
        Protocol::Tfserving => &TFSERVING,
    };
    let text = String::from_utf8_lossy(text).to_lowercase();
    texts.iter().any(|known| text.contains(known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Protocol::{Oip, Openai, Tfserving};

    #[test]
    fn errors_of_capacity_or_capability_are_for_the_cloud() {
        for (protocol, status, text) in [
            (
                Openai,
                400,
                r#"{"error":{"code":400,"type":"exceed_context_size_error","message":"request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it"}}"#,
            ),
            (
                Openai,
                400,
                "This model's maximum context length is 2048 tokens. However, you requested 9000",
            ),
            (Openai, 400, "BLACK-LM is not a multimodal model"),
            (Openai, 400, "At most 0 image(s) may be provided in one prompt."),
            (Openai, 400, "registry.ollama.ai/library/gemma3:4b does not support tools"),
            (
                Openai,
                500,
                "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
            ),
            (Openai, 429, ""),
            (Oip, 400, "inference request batch-size must be <= 8 for 'digits'"),
            (Oip, 500, "in ensemble: out of memory"),
            (Oip, 501, ""),
            (Tfserving, 400, "Task size 65 is larger than maximum input batch size 64"),
        ] {
            assert!(is_for_cloud(protocol, status, text.as_bytes()), "{status} {text}");
        }
    }

    #[test]
    fn mistakes_of_the_client_are_not() {
        for (protocol, status, text) in [
            (Openai, 400, "Invalid type for 'temperature': expected a number"),
            (Openai, 404, "The model `x` does not exist"),
            (Openai, 401, "no key"),
            (Oip, 400, "unexpected shape for input 'pixels': expected [-1,64], got [1,63]"),
            (Oip, 404, "unknown model"),
            (Oip, 400, "the maximum context length of another protocol"),
            (Tfserving, 400, "input size does not match signature"),
            (Tfserving, 422, ""),
        ] {
            assert!(!is_for_cloud(protocol, status, text.as_bytes()), "{status} {text}");
        }
    }
}
