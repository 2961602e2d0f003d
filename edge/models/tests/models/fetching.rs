//! What arrives, from everywhere and in every form.

use std::{fs, os::unix::fs::PermissionsExt as _};

use neptune_models::{Class, Digest, ModelError, Policy, Store};

use crate::{
    archives::{Member, file, gz, member, pax, special, tar, zip},
    server::{Reply, Server},
    stage::{Stage, noise, policy},
};

#[tokio::test]
async fn a_plain_file_is_placed_whole_and_read_only_with_and_without_a_digest() {
    let body = noise(3 << 20, 1);
    let digest = Digest::of_bytes(&body);
    let server = Server::of(body.clone()).await;
    let stage = Stage::new();
    let found = stage.fetch(&format!("{}/m.onnx", server.url), Some(digest)).await.unwrap();
    assert_eq!((found.digest, found.bytes), (digest, body.len() as u64));
    assert_eq!(fs::read(&found.path).unwrap(), body);
    assert_eq!(fs::metadata(&found.path).unwrap().permissions().mode() & 0o777, 0o444);
    let again = stage.fetch(&format!("{}/other.onnx", server.url), Some(digest)).await.unwrap();
    assert_eq!((again.path, server.requests()), (found.path, 1));

    for _ in 0..2 {
        let unsure = stage.fetch(&format!("{}/m.onnx", server.url), None).await.unwrap();
        assert_eq!(
            (unsure.digest, server.requests()),
            (digest, 2),
            "fetched once to learn its digest"
        );
    }
    drop(stage.store);
    let reopened = Store::open(&stage.dir.path().join("store"), policy()).unwrap();
    let want = neptune_models::Want::parse(&format!("{}/m.onnx", server.url), None).unwrap();
    assert_eq!(reopened.present(&want).unwrap().digest, digest);
}

#[tokio::test]
async fn every_archive_is_unpacked_to_the_same_tree() {
    let weights = noise(300_000, 2);
    let plain = tar(&[
        special("./", b'5', ""),
        special("model/1", b'5', ""),
        file("./model/1/weights.bin", &weights),
        file("model/config.txt", b"hello"),
        file("empty", b""),
    ]);
    let zipped = zip(&[
        Member { mode: 0o040_755, ..member("model/1/", b"") },
        Member { is_deflated: true, ..member("model/1/weights.bin", &weights) },
        member("model/config.txt", b"hello"),
        member("empty", b""),
    ]);
    for (end, body) in [
        ("tar", plain.clone()),
        ("tar.gz", gz(&plain)),
        ("tgz", [gz(&plain[..1000]), gz(&plain[1000..])].concat()),
        ("tar.zst", zstd::encode_all(&plain[..], 3).unwrap()),
        ("zip", zipped),
    ] {
        let digest = Digest::of_bytes(&body);
        let server = Server::of(body).await;
        let stage = Stage::new();
        let url = format!("{}/m.{end}?token=x", server.url);
        let found = stage.fetch(&url, Some(digest)).await.unwrap_or_else(|e| panic!("{end}: {e}"));
        assert_eq!(fs::read(found.path.join("model/1/weights.bin")).unwrap(), weights, "{end}");
        assert_eq!(fs::read(found.path.join("model/config.txt")).unwrap(), b"hello", "{end}");
        assert_eq!(crate::stage::files(&found.path).len(), 3, "{end}");
        let partial = fs::read_dir(stage.root().join("partial")).unwrap().count();
        assert_eq!(partial, 0, "{end}: nothing is left");
    }
}

#[tokio::test]
async fn a_local_file_is_taken_only_from_where_the_node_offers_it() {
    let dir = tempfile::tempdir().unwrap();
    let (offered, hidden) = (dir.path().join("offered"), dir.path().join("hidden"));
    fs::create_dir_all(offered.join("sub")).unwrap();
    fs::create_dir(&hidden).unwrap();
    fs::write(offered.join("m.bin"), b"one").unwrap();
    fs::write(offered.join("m.tar"), tar(&[file("a", b"x")])).unwrap();
    fs::write(hidden.join("m.bin"), b"secret").unwrap();
    std::os::unix::fs::symlink(hidden.join("m.bin"), offered.join("out")).unwrap();
    std::os::unix::fs::symlink("m.bin", offered.join("in")).unwrap();
    let stage = Stage::with(Policy { file_roots: vec![offered.clone()], ..policy() });
    let path = |name: &str| offered.join(name).display().to_string();

    let found = stage.fetch(&path("m.bin"), None).await.unwrap();
    assert_eq!(fs::read(&found.path).unwrap(), b"one");
    assert_eq!(
        stage.fetch(&format!("file://{}", path("m.bin")), None).await.unwrap().digest,
        found.digest
    );
    assert_eq!(stage.fetch(&path("in"), Some(found.digest)).await.unwrap().digest, found.digest);
    let unpacked = stage.fetch(&path("m.tar"), None).await.unwrap();
    assert_eq!(fs::read(unpacked.path.join("a")).unwrap(), b"x");
    fs::write(offered.join("m.bin"), b"two, longer").unwrap();
    let changed = stage.fetch(&path("m.bin"), None).await.unwrap();
    assert_eq!(fs::read(changed.path).unwrap(), b"two, longer");
    assert_eq!(fs::read(&found.path).unwrap(), b"one", "what was handed out stays");

    rustix::fs::mknodat(
        rustix::fs::CWD,
        offered.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    for name in ["out", "sub", "pipe"] {
        let error = stage.fetch(&path(name), None).await.unwrap_err();
        assert!(matches!(*error, ModelError::NotOffered { .. }), "{name}: {error}");
    }
    let hidden = hidden.join("m.bin").display().to_string();
    for url in [hidden.as_str(), "/etc/passwd", "file:///etc/passwd", "/proc/self/environ"] {
        let error = stage.fetch(url, None).await.unwrap_err();
        assert!(matches!(*error, ModelError::NotOffered { .. }), "{url}: {error}");
    }
    let error = stage.fetch(&path("missing"), None).await.unwrap_err();
    assert!(matches!(*error, ModelError::Local { .. }) && error.class() == Class::Stuck, "{error}");
}

#[tokio::test]
async fn redirects_are_followed_five_times_and_looked_at_each_time() {
    let server =
        Server::start(|request| match request.path.trim_start_matches('/').parse::<u32>() {
            Ok(0) => Reply { status: 200, body: "x".into(), ..Reply::default() },
            Ok(n) => Reply::status(302).with("location", format!("/{}", n - 1)),
            Err(_) => Reply::status(307).with("location", &request.path[1..]),
        })
        .await;
    let stage = Stage::new();
    assert_eq!(stage.fetch(&format!("{}/5", server.url), None).await.unwrap().bytes, 1);
    let error = stage.fetch(&format!("{}/6", server.url), None).await.unwrap_err();
    assert!(error.to_string().contains("more than 5 times"), "{error}");
    for (to, why) in [
        ("file:///etc/passwd", "another scheme, `file`"),
        ("ftp://127.0.0.1/x", "another scheme, `ftp`"),
        ("http://169.254.169.254/latest/meta-data", "metadata"),
        ("http://[::ffff:169.254.169.254]/", "metadata"),
        ("http://0xa9fea9fe/", "metadata"),
        ("http://[::1]/", "loopback"),
    ] {
        let error = stage.fetch(&format!("{}/{to}", server.url), None).await.unwrap_err();
        assert_eq!(error.class(), Class::Stuck);
        assert!(error.to_string().contains(why), "{to}: {error}");
    }
}

#[tokio::test]
async fn an_answer_tells_whether_to_come_again() {
    let server = Server::start(|request| match request.number {
        0 => Reply::status(503),
        1 => Reply::status(429),
        2 => Reply { status: 200, body: "now".into(), ..Reply::default() },
        _ => Reply::status(404),
    })
    .await;
    let stage = Stage::new();
    assert_eq!(stage.fetch(&format!("{}/m", server.url), None).await.unwrap().bytes, 3);
    let error = stage.fetch(&format!("{}/n?secret", server.url), None).await.unwrap_err();
    assert!(matches!(*error, ModelError::Refused { status: 404, .. }), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[test]
fn a_store_is_open_once() {
    let stage = Stage::new();
    let error = Store::open(&stage.root(), policy()).unwrap_err();
    assert!(matches!(error, ModelError::Locked(_)), "{error}");
}

#[tokio::test]
async fn what_gnu_tar_writes_is_read_as_it_was_in_each_of_its_formats() {
    let dir = tempfile::tempdir().unwrap();
    let offered = dir.path().canonicalize().unwrap();
    let source = offered.join("source");
    let long = "directory-with-a-long-name/".repeat(6);
    for name in ["short", "a dir/näme", &format!("{long}file"), "empty"] {
        let path = source.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(
            path,
            if name == "empty" { Vec::new() } else { noise(70_000, name.len() as u64) },
        )
        .unwrap();
    }
    let stage = Stage::with(Policy { file_roots: vec![offered.clone()], ..policy() });
    for format in ["gnu", "oldgnu", "pax", "ustar"] {
        let archive = offered.join(format!("{format}.tar"));
        let made = std::process::Command::new("tar")
            .args(["--format", format, "-cf"])
            .args([archive.as_os_str(), "-C".as_ref(), source.as_os_str(), ".".as_ref()])
            .status()
            .unwrap();
        assert!(made.success());
        let found = stage.fetch(archive.to_str().unwrap(), None).await.unwrap();
        let same = std::process::Command::new("diff")
            .args(["-r".as_ref(), source.as_os_str(), found.path.as_os_str()])
            .status()
            .unwrap();
        assert!(same.success(), "{format}");
    }
    let commented = [pax(b'g', &[("comment", "0123")]), file("a", b"x")];
    fs::write(offered.join("git.tar"), tar(&commented)).unwrap();
    let found = stage.fetch(offered.join("git.tar").to_str().unwrap(), None).await.unwrap();
    assert_eq!(fs::read(found.path.join("a")).unwrap(), b"x");
}
