//! What the fuzz targets have in common: files in memory, archives of arrays, and a count of the
//! memory that a parser takes.
#![allow(dead_code, unused_imports, reason = "the modules are parts of other crates")]

// The manifest names the digest by the crate that it is in.
extern crate self as neptune_content;

#[path = "../../content/src/digest.rs"]
pub mod digest;
#[path = "../../content/src/headers.rs"]
pub mod headers;
#[path = "../../../edge/share/src/replicas/manifest.rs"]
pub mod manifest;
#[path = "../../content/src/uploads.rs"]
pub mod uploads;
#[path = "../../aggregate/src/weights/mod.rs"]
pub mod weights;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fs::File,
    os::unix::fs::FileExt as _,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

pub use digest::Digest;
use weights::{Weights, WeightsError};

/// Bytes of a file that are read at a time, as in the crate of the weights.
const CHUNK: usize = 256 * 1024;
/// Values of a tensor that a target reads at most.
const MAX_VALUES: usize = 1 << 16;

/// Counts the bytes that are allocated, and the most at a time.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: each call is passed on; only sizes are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs `action`, and returns the most bytes that it had allocated at a time.
pub fn peak<T>(action: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = action();
    (result, PEAK.load(Relaxed).saturating_sub(before))
}

thread_local! {
    static FILE: File = tempfile::tempfile_in("/dev/shm").expect("a file in memory");
}

/// Opens the content as a file of weights and reads all tensors. The header may take `fixed` bytes
/// and `factor` times its input.
///
/// # Panics
/// An invariant is violated.
pub fn check_weights(content: &[u8], fixed: usize, factor: usize) {
    let file = FILE.with(|file| file.try_clone()).expect("a descriptor");
    file.set_len(0).expect("room in memory");
    file.write_all_at(content, 0).expect("room in memory");
    let (opened, allocated) = peak(|| Weights::open(file));
    let limit = fixed + factor * content.len();
    assert!(allocated <= limit, "{allocated} bytes for an input of {}", content.len());
    let Ok(weights) = opened else { return };
    for tensor in weights.tensors() {
        let bytes = tensor.bytes().expect("the shape of an accepted tensor is possible");
        assert!(weights.tensor(&tensor.name).is_some(), "a tensor has its name");
        match weights.values(tensor, MAX_VALUES) {
            // Integers are not decoded.
            Ok(values) if values.is_empty() => {}
            Ok(values) => assert_eq!((values.len() * tensor.data_type.size()) as u64, bytes),
            // Deflated data may be shorter than its directory entry, or damaged.
            Err(WeightsError::TooLarge { .. }) => {}
            Err(_) => assert_eq!(weights.format(), weights::Format::Npz, "raw data is complete"),
        }
    }
}

/// A `.npz` file with these members, stored.
pub fn npz(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    let u16_of = |length: usize| u16::try_from(length).expect("a short name").to_le_bytes();
    let u32_of = |length: usize| u32::try_from(length).expect("a small file").to_le_bytes();
    for (name, content) in members {
        let offset = u32_of(file.len());
        let (name, size) = (name.as_bytes(), u32_of(content.len()));
        let common = [&[0; 12][..], &size, &size, &u16_of(name.len()), &[0; 2]].concat();
        file.extend([b"PK\x03\x04\x14\x00", &common[..], name, content].concat());
        let begin = [b"PK\x01\x02\x14\x00\x14\x00", &common[..], &[0; 10], &offset, name];
        directory.extend(begin.concat());
    }
    let (count, size, at) = (u16_of(members.len()), u32_of(directory.len()), u32_of(file.len()));
    let end = [b"PK\x05\x06\x00\x00\x00\x00", &count[..], &count, &size, &at, &[0; 2]].concat();
    [file, directory, end].concat()
}
