//! Resumable uploads: header fields of blocks, and any order of blocks of one content. An input is a
//! length, then that many bytes of steps, then the content.
#![no_main]

use std::{cell::RefCell, fs};

use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;
use neptune_fuzz::{
    Digest,
    headers::{
        Block, CONTENT_DIGEST, Progress, UPLOAD_COMPLETE, UPLOAD_LENGTH, UPLOAD_OFFSET,
    },
    peak,
    uploads::{Received, UploadError, UploadId, Uploads},
};
use tempfile::TempDir;

/// Bytes of a content.
const MAX: u64 = 2048;

thread_local! {
    static DIRECTORY: TempDir = TempDir::new_in("/dev/shm").expect("a directory in memory");
    static UPLOADS: RefCell<Option<Uploads>> = const { RefCell::new(None) };
}

fuzz_target!(|input: &[u8]| {
    let Some((count, rest)) = input.split_first() else { return };
    let (steps, content) = rest.split_at(usize::from(*count).min(rest.len()));
    check_headers(rest);
    DIRECTORY.with(|directory| {
        UPLOADS.with_borrow_mut(|uploads| {
            let open = || Uploads::open(directory.path().to_owned(), MAX).expect("a directory");
            check_uploads(uploads.get_or_insert_with(open), steps, content);
        });
    });
});

/// Any text in the fields is refused or read, and what was read is written the same.
fn check_headers(text: &[u8]) {
    let good = Block { offset: 0, is_last: true, length: 1, digest: Digest::of_bytes(b"") };
    let Ok(value) = HeaderValue::from_bytes(text) else { return };
    for name in [UPLOAD_OFFSET, UPLOAD_LENGTH, UPLOAD_COMPLETE, CONTENT_DIGEST] {
        let mut headers: HeaderMap = good.headers();
        headers.insert(name, value.clone());
        let (parsed, allocated) = peak(|| Block::parse(&headers));
        assert!(allocated <= 64 + 4 * text.len(), "{allocated} bytes for {}", text.len());
        if let Ok(block) = parsed {
            assert_eq!(Block::parse(&block.headers()), Ok(block));
        }
        if let Ok(progress) = Progress::parse(&headers) {
            assert_eq!(Progress::parse(&progress.headers()), Ok(progress));
        }
    }
}

/// Each step is a block of the content, or of something else. What is complete has its digest; what
/// is partial is a prefix of what was sent, and shrinks only when the whole digest was wrong.
fn check_uploads(uploads: &Uploads, steps: &[u8], content: &[u8]) {
    let length = content.len() as u64;
    let id = UploadId { purpose: Digest::of_bytes(b"task"), content: Digest::of_bytes(content) };
    for step in steps.chunks_exact(3) {
        let (offset, size) = (usize::from(step[1]) * 8, usize::from(step[2]) * 8);
        let start = offset.min(content.len());
        let mut bytes = content[start..(start + size).min(content.len())].to_vec();
        let mut block = Block {
            offset: offset as u64,
            is_last: start + bytes.len() == content.len(),
            length,
            digest: Digest::of_bytes(&bytes),
        };
        match step[0] {
            // The sender resumes where the receiver is.
            0..=127 => {
                let at = uploads.offset(&id).expect("a file in memory");
                block.offset = at;
                let at = usize::try_from(at).expect("a short content").min(content.len());
                bytes = content[at..(at + size).min(content.len())].to_vec();
                block.is_last = at + bytes.len() == content.len();
                block.digest = Digest::of_bytes(&bytes);
            }
            128..=159 => block.is_last = !block.is_last,
            160..=191 => block.length = u64::from(step[2]) << (step[1] % 60),
            192..=223 => {
                bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                block.digest = Digest::of_bytes(&bytes);
            }
            _ => bytes.push(step[0]),
        }
        let before = uploads.offset(&id).expect("a file in memory");
        let result = uploads.append(&id, block, &bytes);
        let after = uploads.offset(&id).expect("a file in memory");
        match result {
            Ok(Received::Complete(path)) => {
                assert_eq!(fs::read(path).expect("a complete file"), content);
            }
            Ok(Received::Partial(next)) => {
                assert_eq!((next, after), (before + bytes.len() as u64, next));
            }
            Err(UploadError::ContentDigest(_)) => assert_eq!(after, 0, "it begins again"),
            Err(UploadError::Io { path, error }) => panic!("{}: {error}", path.display()),
            Err(_) => assert_eq!(after, before, "a refused block changes nothing"),
        }
        assert!(after <= MAX, "{after} bytes");
    }
    uploads.retain(|_| false, |_| false).expect("files in memory");
}
