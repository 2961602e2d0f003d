//! Manifests of replicated datasets. An input is the JSON, or with a first byte of 0 the compressed
//! manifest.
#![no_main]

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;
use neptune_fuzz::{manifest::Manifest, peak};

/// A window of the decompressor, and the text of a small manifest that inflates.
const FIXED: usize = (16 + 5 * 64) * 1024 * 1024;

fuzz_target!(|input: &[u8]| {
    let (encoded, text) = match input.split_first() {
        Some((0, encoded)) => (encoded.to_vec(), None),
        _ => (zstd::encode_all(input, 1).expect("memory"), Some(input.len())),
    };
    let (decoded, allocated) = peak(|| Manifest::decode(&encoded));
    // The decompressor allocates outside of Rust, except its buffer of 128 KiB.
    let limit = text.map_or(FIXED, |text| 160 * 1024 + 8 * text);
    assert!(allocated <= limit, "{allocated} bytes for an input of {}", input.len());
    let Ok(manifest) = decoded else { return };
    let root = Path::new("/data");
    for path in manifest.files.keys() {
        let below = path.below(root);
        let rest = below.strip_prefix(root).expect("a path below the directory");
        assert!(rest.components().all(|part| matches!(part, Component::Normal(_))), "{rest:?}");
    }
    let again = Manifest::decode(&manifest.encode().expect("memory")).expect("it was valid");
    assert_eq!((again.root(), again.bytes()), (manifest.root(), manifest.bytes()));
    assert_eq!(again, manifest);
});
