//! Hostile archives. All are refused, and none leaves files behind.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use neptune_store::{ArchiveLimits, ModelError, ModelErrorClass, StorePolicy};

use crate::{
    archives::{Entry, Member, block, file, gz, member, pax, special, tar, zip},
    fixture::{StoreFixture, files, noise, policy},
};

const LIMITS: ArchiveLimits =
    ArchiveLimits { file: 4 << 20, total: 6 << 20, entries: 200, ratio: 100 };

struct Case {
    what: &'static str,
    end: &'static str,
    body: Vec<u8>,
    reason: &'static str,
}

fn case(what: &'static str, end: &'static str, body: Vec<u8>, reason: &'static str) -> Case {
    Case { what, end, body, reason }
}

/// Archives that unpack to no model.
fn empty() -> Vec<Case> {
    vec![
        case("0 bytes", "tar", Vec::new(), "contains no file"),
        case("only the end", "tar", vec![0; 1024], "contains no file"),
    ]
}

fn names() -> Vec<Case> {
    let one = |name: &str| tar(&[file("good", b"x"), file(name, b"x")]);
    let long = "n".repeat(300);
    let deep = "d/".repeat(40) + "x";
    vec![
        case("a path up", "tar", one("../evil"), "`..`"),
        case("a path up, deep", "tar", one("a/b/../../../evil"), "`..`"),
        case(
            "a path up, PAX",
            "tar",
            tar(&[pax(b'x', &[("path", "../evil")]), file("a", b"")]),
            "`..`",
        ),
        case(
            "a path up, GNU",
            "tar",
            tar(&[Entry { kind: b'L', ..file("l", b"../../evil\0") }, file("a", b"")]),
            "`..`",
        ),
        case("an absolute path", "tar", one("/etc/cron.d/evil"), "absolute"),
        case(
            "an absolute path, PAX",
            "tar.gz",
            gz(&tar(&[pax(b'x', &[("path", "/evil")]), file("a", b"")])),
            "absolute",
        ),
        case("a backslash", "tar", one("..\\evil"), "backslash"),
        case("a line break", "tar", one("a\nb"), "control"),
        case("an escape", "tar", one("a\u{1b}[2Jb"), "control"),
        case("no UTF-8", "tar", tar(&[Entry { name: vec![0xff, 0xfe], ..file("", b"") }]), "UTF-8"),
        case("a long name", "tar", tar(&[pax(b'x', &[("path", &long)]), file("a", b"")]), "255"),
        case("a deep name", "tar", one(&deep), "deep"),
        case("a name twice", "tar", tar(&[file("a", b"1"), file("a", b"2")]), "duplicate"),
        case(
            "a name twice, in two spellings",
            "tar",
            tar(&[file("a/b", b"1"), file("./a//b", b"2")]),
            "duplicate",
        ),
        case(
            "names that differ in case",
            "tar",
            tar(&[file("Model", b"1"), file("mODEL", b"2")]),
            "letter case",
        ),
        case(
            "directories that differ in case",
            "tar",
            tar(&[file("A/1", b""), file("a/2", b"")]),
            "letter case",
        ),
        case("a file as a directory", "tar", tar(&[file("a", b""), file("a/b", b"")]), "both"),
        case("a directory as a file", "tar", tar(&[file("a/b", b""), file("a", b"")]), "both"),
        case("a file named like a directory", "tar", one("a/"), ""),
    ]
}

fn kinds() -> Vec<Case> {
    let one = |kind, link| tar(&[special("x", kind, link)]);
    vec![
        case("a link out", "tar", one(b'2', "/etc/passwd"), "symbolic links"),
        case("a link up", "tar", one(b'2', "../../x"), "symbolic links"),
        case("a link in", "tar", tar(&[file("a", b""), special("b", b'2', "a")]), "symbolic links"),
        case(
            "a path through a link",
            "tar",
            tar(&[special("d", b'2', "/tmp"), file("d/evil", b"x")]),
            "symbolic links",
        ),
        case("a hard link", "tar", one(b'1', "/etc/shadow"), "hard links"),
        case("a character device", "tar", one(b'3', ""), "device nodes"),
        case("a block device", "tar", one(b'4', ""), "device nodes"),
        case("a pipe", "tar", one(b'6', ""), "named pipes"),
        case("an unknown kind", "tar", one(b'Z', ""), "unknown entry type"),
        case("a sparse file", "tar", one(b'S', ""), ""),
        case(
            "a sparse file, PAX",
            "tar",
            tar(&[
                pax(b'x', &[("GNU.sparse.major", "1"), ("GNU.sparse.realsize", "99999999999")]),
                file("a", b""),
            ]),
            "sparse",
        ),
        case(
            "a directory with content",
            "tar",
            tar(&[Entry { kind: b'5', ..file("d", &[0; 512]) }]),
            "directory has content",
        ),
    ]
}

/// Headers that two programs interpret differently.
fn desynced() -> Vec<Case> {
    let inner = block(&file("evil", b"x"));
    let hidden = Entry { size: Some(512), ..file("carrier", &inner) };
    let with_size = |size: &str| tar(&[pax(b'x', &[("size", size)]), hidden.clone()]);
    let mut checksum = tar(&[file("a", b"x")]);
    checksum[0] ^= 1;
    let whole = tar(&[file("a", &noise(5000, 1))]);
    let twice = [whole.clone(), tar(&[file("b", b"")])].concat();
    let huge_header = Entry { kind: b'L', ..file("l", &vec![b'a'; 1 << 20]) };
    vec![
        case("a PAX size of zero hides an entry", "tar", with_size("0"), "contradict"),
        case("a PAX size beyond", "tar", with_size("1024"), "contradict"),
        case(
            "a PAX size of its own kind",
            "tar",
            tar(&[pax(b'x', &[("size", "+512")]), hidden.clone()]),
            "",
        ),
        case(
            "a PAX path twice",
            "tar",
            tar(&[pax(b'x', &[("path", "a"), ("path", "b")]), file("c", b"")]),
            "duplicate",
        ),
        case(
            "PAX headers twice",
            "tar",
            tar(&[pax(b'x', &[("path", "a")]), pax(b'x', &[("path", "b")]), file("c", b"")]),
            "",
        ),
        case(
            "global PAX names",
            "tar",
            tar(&[pax(b'g', &[("path", "a")]), file("c", b"")]),
            "global",
        ),
        case(
            "a malformed PAX record",
            "tar",
            tar(&[Entry { kind: b'x', ..file("p", b"999 path=a\n") }, file("c", b"")]),
            "",
        ),
        case("a header for nothing", "tar", tar(&[pax(b'x', &[("path", "a")])]), ""),
        case("a wrong checksum", "tar", checksum, "checksum"),
        case("an end in the middle", "tar", whole[..2000].to_vec(), ""),
        case("two archives", "tar", twice, "after the end"),
        case(
            "something behind the end",
            "tar.gz",
            gz(&[whole.clone(), b"evil".to_vec()].concat()),
            "after the end",
        ),
        case("something behind the gzip", "tar.gz", [gz(&whole), b"evil".to_vec()].concat(), ""),
        case("a cut gzip", "tar.gz", gz(&whole)[..100].to_vec(), ""),
        case("a name of a MiB", "tar", tar(&[huge_header, file("a", b"")]), "too long"),
        case("not a tar", "tar", noise(4096, 2), ""),
        case("not a gzip", "tgz", noise(4096, 2), ""),
        case("not a zstd", "tar.zst", noise(4096, 2), ""),
        case("not a zip", "zip", noise(4096, 2), ""),
    ]
}

fn zeros_in_gzip(length: usize, head: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(head).unwrap();
    let zeros = vec![0; 1 << 20];
    for _ in 0..length >> 20 {
        encoder.write_all(&zeros).unwrap();
    }
    encoder.finish().unwrap()
}

fn bombs() -> Vec<Case> {
    let many: Vec<Entry> = (0..300).map(|at| file(&format!("{at}"), b"")).collect();
    let members: Vec<Member> = (0..300).map(|at| member(&format!("{at}"), b"")).collect();
    let three: Vec<Entry> = (0..3).map(|at| file(&format!("{at}"), &vec![1; 3 << 20])).collect();
    let big = block(&Entry { size: Some(64 << 20), ..file("big", b"") });
    let mut window = zstd::Encoder::new(Vec::new(), 1).unwrap();
    window.window_log(27).unwrap();
    window.long_distance_matching(true).unwrap();
    window.include_contentsize(false).unwrap();
    window.write_all(&vec![0; 12 << 20]).unwrap();
    let zeros = vec![0; 3 << 20];
    let deflated = |name: &str, body: &[u8]| Member { is_deflated: true, ..member(name, body) };
    vec![
        case("many entries", "tar.gz", gz(&tar(&many)), "200 entries"),
        case("many zip entries", "zip", zip(&members), "200 entries"),
        case(
            "a large file",
            "tar.gz",
            gz(&tar(&[file("a", &noise(5 << 20, 3))])),
            "file is larger than",
        ),
        case("much in all", "tar.gz", gz(&tar(&three)), "content is larger than"),
        case(
            "zeros behind the end",
            "tar.gz",
            zeros_in_gzip(64 << 20, &tar(&[file("a", b"")])),
            "times the packed size",
        ),
        case(
            "a large sparse-like file",
            "tar.gz",
            zeros_in_gzip(64 << 20, &big),
            "file is larger than",
        ),
        case("a large window", "tar.zst", window.finish().unwrap(), ""),
        case(
            "a zip of zeros",
            "zip",
            zip(&[deflated("a", &zeros), deflated("b", &zeros), deflated("c", &zeros)]),
            "content is larger than",
        ),
    ]
}

fn zips() -> Vec<Case> {
    let link = Member { mode: 0o120_777, ..member("l", b"/etc/passwd") };
    let device = Member { mode: 0o020_644, ..member("d", b"") };
    let locked = Member { flags: 1, ..member("a", b"0123456789abcdef") };
    let two_names = Member { local_name: Some(b"b".to_vec()), ..member("a", b"x") };
    let short = Member { stated_size: Some(3), is_deflated: true, ..member("a", b"12345") };
    let mut broken = zip(&[member("a", b"hello")]);
    broken[33] ^= 1;
    let mut overlapping = zip(&[member("a", b"hello"), member("b", b"hello")]);
    // The second entry of the directory points at the first entry's data.
    let second = overlapping.windows(4).rposition(|at| at == b"PK\x01\x02").unwrap();
    overlapping[second + 42..second + 46].copy_from_slice(&[0; 4]);
    vec![
        case("a zip path up", "zip", zip(&[member("../evil", b"x")]), "`..`"),
        case("an absolute zip path", "zip", zip(&[member("/evil", b"x")]), "absolute"),
        case("a zip backslash", "zip", zip(&[member("..\\evil", b"x")]), "backslash"),
        case("a zip link", "zip", zip(&[link]), "symbolic links"),
        case("a zip device", "zip", zip(&[device]), "neither a regular file"),
        case("a zip name twice", "zip", zip(&[member("a", b"1"), member("a", b"2")]), "duplicate"),
        case(
            "zip names that differ in case",
            "zip",
            zip(&[member("a", b""), member("A", b"")]),
            "letter case",
        ),
        case("an encrypted zip", "zip", zip(&[locked]), ""),
        case("two names of one zip entry", "zip", zip(&[two_names]), ""),
        case("a zip entry longer than its stated size", "zip", zip(&[short]), ""),
        case("a zip with a wrong sum", "zip", broken, ""),
        case("overlapping zip entries", "zip", overlapping, ""),
        case(
            "something before a zip",
            "zip",
            [b"#!/bin/sh\n".to_vec(), zip(&[member("a", b"x")])].concat(),
            "",
        ),
        case("a cut zip", "zip", zip(&[member("a", &noise(5000, 4))])[..3000].to_vec(), ""),
    ]
}

#[tokio::test]
async fn hostile_archives_are_refused_and_leave_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let allowed = dir.path().canonicalize().unwrap();
    let fixture = StoreFixture::with(StorePolicy {
        file_roots: vec![allowed.clone()],
        archive_limits: LIMITS,
        ..policy()
    });
    let all = [names(), kinds(), desynced(), bombs(), zips(), empty()];
    let mut wrong = Vec::new();
    let all: Vec<Case> = all.into_iter().flatten().collect();
    assert!(all.len() >= 30, "{} archives", all.len());
    for (at, Case { what, end, body, reason }) in all.into_iter().enumerate() {
        let path = allowed.join(format!("{at}.{end}"));
        std::fs::write(&path, body).unwrap();
        match fixture.fetch(path.to_str().unwrap(), None).await {
            Ok(artifact) => wrong.push(format!("{what} is accepted: {:?}", files(&artifact.path))),
            Err(error) => {
                let is_right = matches!(*error, ModelError::InvalidArchive { .. })
                    && error.class() == ModelErrorClass::Permanent
                    && error.to_string().contains(reason);
                if !is_right {
                    wrong.push(format!("{what}: {error}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    fixture.assert_empty();
}
