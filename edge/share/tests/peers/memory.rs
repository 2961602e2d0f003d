//! Memory of a transfer. The measurement needs a process of its own, as cargo-nextest gives it.

use std::{fs, io::Read as _, sync::Arc};

use neptune_share::peers::{FetchOutcome, limits::DEFAULT_RATE};
use neptune_transfer::Digest;
use sha2::{Digest as _, Sha256};

use crate::site::{Member, introduce};

const BYTES: u64 = 200_000_000;

/// A value of this process, in bytes.
fn memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let kibibytes: u64 = line.trim_matches([':', ' ', '\t', 'k', 'B']).parse().unwrap();
    kibibytes * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_of_200_mb_needs_less_than_4_mib_per_member() {
    let members: Vec<_> =
        ["a", "b", "c"].map(|it| Arc::new(Member::start(it, DEFAULT_RATE))).into();
    introduce(&members);
    let path = members[0].directory.path().join("content");
    fs::File::create(&path).unwrap().set_len(BYTES).unwrap();
    let (mut file, mut hash) = (fs::File::open(&path).unwrap(), Sha256::new());
    let mut piece = vec![0; 64 * 1024];
    loop {
        match file.read(&mut piece).unwrap() {
            0 => break,
            read => hash.update(&piece[..read]),
        }
    }
    let digest = Digest::from(hash);
    members[0].table.set_held(digest, path, BYTES);
    // Threads, TLS and file access of both sides are there before the measurement.
    members[0].hold(Digest::of_bytes(b"x"), b"x");
    members[1].fetch(Digest::of_bytes(b"x")).await;
    let before = memory("VmRSS");
    let (first, second) = tokio::join!(members[1].fetch(digest), members[2].fetch(digest));
    for result in [first, second] {
        assert_eq!(result.outcome, FetchOutcome::Stored(members[0].node.clone()));
        assert_eq!(result.received, BYTES);
    }
    let more = memory("VmHWM").saturating_sub(before);
    println!("{more} bytes for a server with two uploads, and two readers");
    assert!(more < 3 * 4 * 1024 * 1024, "{more}");
}
