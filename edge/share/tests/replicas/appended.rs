//! Files that grow, over a link that is cut.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use neptune_share::replicas::{Deletions, FileEnd};

use crate::fixture::{Fixture, files};

const MIB: u64 = 1024 * 1024;

/// Writes lines with a number and a checksum, until there are so many bytes.
fn append_lines(file: &mut File, next: &mut u64, bytes: usize) {
    let mut lines = Vec::with_capacity(bytes + 100);
    while lines.len() < bytes {
        let filler = "x".repeat(usize::try_from(*next % 60).unwrap());
        writeln!(lines, "{{\"number\":{next},\"fill\":\"{filler}\",\"check\":{}}}", *next * 7)
            .unwrap();
        *next += 1;
    }
    file.write_all(&lines).unwrap();
}

/// Reads a file as it grows, like `tail -f`. Returns the number of lines; each is whole and the next.
fn tail(path: &Path, is_ended: &AtomicBool) -> u64 {
    let (mut text, mut number) = (Vec::new(), 0_u64);
    let mut file = None;
    loop {
        let was_ended = is_ended.load(Ordering::Acquire);
        if file.is_none() {
            file = File::open(path).ok();
        }
        let read = file.as_mut().map_or(0, |file: &mut File| file.read_to_end(&mut text).unwrap());
        let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |it| it + 1);
        for line in text[..end].split_inclusive(|byte| *byte == b'\n') {
            let line = std::str::from_utf8(line).unwrap();
            let start = format!("{{\"number\":{number},");
            let check = format!("\"check\":{}}}\n", number * 7);
            assert!(line.starts_with(&start) && line.ends_with(&check), "{number}: {line}");
            number += 1;
        }
        text.drain(..end);
        if read == 0 && was_ended {
            assert!(text.is_empty(), "a part of a line at the end");
            return number;
        }
        std::thread::yield_now();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_20_cuts_costs_at_most_one_block() {
    let is_real = std::env::var_os("REPLICAS_REAL_SIZE").is_some();
    let total = if is_real { 1_000_000_000 } else { 64_000_000 };
    let fixture = Fixture::start(FileEnd::LastLine).await;
    let mut log = File::create(fixture.data().join("log.jsonl")).unwrap();
    append_lines(&mut log, &mut 0, usize::try_from(total).unwrap());
    let generation = fixture.scan(false).await;
    let mut replica = fixture.replica(Deletions::Follow, false);
    let mut cuts = 0;
    let mut random = fastrand::Rng::with_seed(1);
    loop {
        match cuts {
            20 => fixture.link.restore(),
            _ => fixture.link.cut_after(total / 25 + random.u64(..total / 100)),
        }
        match fixture.sync(&mut replica, &generation).await {
            Ok(_) => break,
            Err(_) => cuts += 1,
        }
        // A restart of the agent, which hashes the file that it was writing.
        if cuts % 5 == 0 {
            drop(replica);
            replica = fixture.replica(Deletions::Follow, false);
        }
    }
    assert_eq!(cuts, 20);
    assert_eq!(replica.root(), generation.root);
    assert_eq!(files(&fixture.copy()), files(&fixture.data()));
    // TLS, headers and handshakes are less than 1 %.
    let more = fixture.link.sent().saturating_sub(generation.bytes + generation.bytes / 100);
    let sent = fixture.link.sent() as f64 / generation.bytes as f64;
    println!("{} bytes, 20 cuts: {sent:.4} of them sent, {more} more than 1.01", generation.bytes);
    assert!(more <= 20 * MIB, "{more}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_of_a_growing_file_leaves_no_part_of_a_line() {
    let fixture = Fixture::start(FileEnd::LastLine).await;
    let mut log = File::create(fixture.data().join("log.jsonl")).unwrap();
    let (mut next, mut random) = (0, fastrand::Rng::with_seed(7));
    append_lines(&mut log, &mut next, 100_000);
    let mut replica = fixture.replica(Deletions::Follow, false);
    fixture.update(&mut replica).await;
    let copy = fixture.copy().join("log.jsonl");
    for round in 0..4 {
        append_lines(&mut log, &mut next, 6_000_000);
        let generation = fixture.scan(false).await;
        let mut length = fs::metadata(&copy).unwrap().len();
        for cut in 0..2 {
            // One block arrives, and a part of the next.
            fixture.link.cut_after(MIB + MIB / 4 + random.u64(..MIB / 2));
            fixture.sync(&mut replica, &generation).await.unwrap_err();
            let text = fs::read(&copy).unwrap();
            assert_eq!(text.last(), Some(&b'\n'), "round {round}, cut {cut}");
            assert!(text.len() as u64 > length, "a block arrived");
            length = text.len() as u64;
            // The agent restarts, or not.
            if cut == round % 2 {
                drop(replica);
                replica = fixture.replica(Deletions::Follow, false);
            }
        }
        fixture.link.restore();
        fixture.update(&mut replica).await;
    }
}

#[tokio::test]
async fn line_that_is_longer_than_a_block_arrives() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    let path = fixture.data().join("log.jsonl");
    let mut replica = fixture.replica(Deletions::Follow, false);
    let mut log = File::create(&path).unwrap();
    for bytes in [10, 3 * MIB, 5 * MIB / 2, 7] {
        log.write_all(&vec![b'x'; usize::try_from(bytes).unwrap()]).unwrap();
        fixture.update(&mut replica).await;
        log.write_all(b"\n").unwrap();
        fixture.update(&mut replica).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_of_a_growing_replica_sees_whole_lines() {
    let fixture = Fixture::start(FileEnd::LastLine).await;
    let path = fixture.data().join("log.jsonl");
    let mut log = File::create(&path).unwrap();
    let mut replica = fixture.replica(Deletions::Follow, false);
    let is_ended = Arc::new(AtomicBool::new(false));
    let reader = {
        let (path, is_ended) = (fixture.copy().join("log.jsonl"), Arc::clone(&is_ended));
        tokio::task::spawn_blocking(move || tail(&path, &is_ended))
    };
    let (mut next, mut random) = (0, fastrand::Rng::with_seed(2));
    let (mut sent, mut last) = (0, 0);
    for step in 0..30 {
        append_lines(&mut log, &mut next, random.usize(1..1_500_000));
        // The source has a part of a line, which is not offered.
        log.write_all(b"{\"number\":").unwrap();
        let generation = fixture.scan(false).await;
        assert!(generation.number > last);
        last = generation.number;
        if step % 3 == 0 {
            fixture.link.cut_after(random.u64(..500_000));
            let _ = fixture.sync(&mut replica, &generation).await;
            fixture.link.restore();
        }
        let report = fixture.sync(&mut replica, &generation).await.unwrap();
        sent += report.fetched_bytes;
        assert_eq!(replica.root(), generation.root);
        // The source completes its line.
        writeln!(log, "{next},\"fill\":\"\",\"check\":{}}}", next * 7).unwrap();
        next += 1;
    }
    fixture.scan(false).await;
    let generation = fixture.scan(false).await;
    fixture.sync(&mut replica, &generation).await.unwrap();
    is_ended.store(true, Ordering::Release);
    assert_eq!(reader.await.unwrap(), next);
    assert_eq!(fs::read(&path).unwrap(), fs::read(fixture.copy().join("log.jsonl")).unwrap());
    assert!(sent <= generation.bytes, "{sent} of {}: nothing is sent twice", generation.bytes);
}
