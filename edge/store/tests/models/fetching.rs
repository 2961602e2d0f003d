//! Fetches from all sources and in all packagings.

use std::{fs, os::unix::fs::PermissionsExt as _};

use neptune_store::{Digest, ModelError, ModelErrorClass, ModelStore, StorePolicy};

use crate::{
    archives::{Member, file, gz, member, pax, special, tar, zip},
    fixture::{StoreFixture, noise, policy},
    server::{Reply, Server},
};

#[tokio::test]
async fn plain_file_is_stored_read_only_with_and_without_digest() {
    let body = noise(3 << 20, 1);
    let digest = Digest::of_bytes(&body);
    let server = Server::serve_file(body.clone()).await;
    let fixture = StoreFixture::new();
    let artifact = fixture.fetch(&format!("{}/m.onnx", server.url), Some(digest)).await.unwrap();
    assert_eq!((artifact.digest, artifact.bytes), (digest, body.len() as u64));
    assert_eq!(fs::read(&artifact.path).unwrap(), body);
    assert_eq!(fs::metadata(&artifact.path).unwrap().permissions().mode() & 0o777, 0o444);
    let again = fixture.fetch(&format!("{}/other.onnx", server.url), Some(digest)).await.unwrap();
    assert_eq!((again.path, server.requests()), (artifact.path, 1));

    for _ in 0..2 {
        let unsure = fixture.fetch(&format!("{}/m.onnx", server.url), None).await.unwrap();
        assert_eq!(
            (unsure.digest, server.requests()),
            (digest, 2),
            "fetched once to find its digest"
        );
    }
    drop(fixture.store);
    let reopened = ModelStore::open(&fixture.dir.path().join("store"), policy()).unwrap();
    let request =
        neptune_store::ArtifactRequest::parse(&format!("{}/m.onnx", server.url), None).unwrap();
    assert_eq!(reopened.find(&request).unwrap().digest, digest);
}

#[tokio::test]
async fn every_packaging_unpacks_to_the_same_tree() {
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
        let server = Server::serve_file(body).await;
        let fixture = StoreFixture::new();
        let url = format!("{}/m.{end}?token=x", server.url);
        let artifact =
            fixture.fetch(&url, Some(digest)).await.unwrap_or_else(|e| panic!("{end}: {e}"));
        assert_eq!(fs::read(artifact.path.join("model/1/weights.bin")).unwrap(), weights, "{end}");
        assert_eq!(fs::read(artifact.path.join("model/config.txt")).unwrap(), b"hello", "{end}");
        assert_eq!(crate::fixture::files(&artifact.path).len(), 3, "{end}");
        let partial = fs::read_dir(fixture.root().join("partial")).unwrap().count();
        assert_eq!(partial, 0, "{end}: no leftovers");
    }
}

#[tokio::test]
async fn local_file_is_read_only_from_allowed_directories() {
    let dir = tempfile::tempdir().unwrap();
    let (allowed, hidden) = (dir.path().join("allowed"), dir.path().join("hidden"));
    fs::create_dir_all(allowed.join("sub")).unwrap();
    fs::create_dir(&hidden).unwrap();
    fs::write(allowed.join("m.bin"), b"one").unwrap();
    fs::write(allowed.join("m.tar"), tar(&[file("a", b"x")])).unwrap();
    fs::write(hidden.join("m.bin"), b"secret").unwrap();
    std::os::unix::fs::symlink(hidden.join("m.bin"), allowed.join("out")).unwrap();
    std::os::unix::fs::symlink("m.bin", allowed.join("in")).unwrap();
    let fixture = StoreFixture::with(StorePolicy { file_roots: vec![allowed.clone()], ..policy() });
    let path = |name: &str| allowed.join(name).display().to_string();

    let artifact = fixture.fetch(&path("m.bin"), None).await.unwrap();
    assert_eq!(fs::read(&artifact.path).unwrap(), b"one");
    assert_eq!(
        fixture.fetch(&format!("file://{}", path("m.bin")), None).await.unwrap().digest,
        artifact.digest
    );
    assert_eq!(
        fixture.fetch(&path("in"), Some(artifact.digest)).await.unwrap().digest,
        artifact.digest
    );
    let unpacked = fixture.fetch(&path("m.tar"), None).await.unwrap();
    assert_eq!(fs::read(unpacked.path.join("a")).unwrap(), b"x");
    fs::write(allowed.join("m.bin"), b"two, longer").unwrap();
    let changed = fixture.fetch(&path("m.bin"), None).await.unwrap();
    assert_eq!(fs::read(changed.path).unwrap(), b"two, longer");
    assert_eq!(fs::read(&artifact.path).unwrap(), b"one", "a returned artifact does not change");

    rustix::fs::mknodat(
        rustix::fs::CWD,
        allowed.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    for name in ["out", "sub", "pipe"] {
        let error = fixture.fetch(&path(name), None).await.unwrap_err();
        assert!(matches!(*error, ModelError::PathNotAllowed { .. }), "{name}: {error}");
    }
    let hidden = hidden.join("m.bin").display().to_string();
    for url in [hidden.as_str(), "/etc/passwd", "file:///etc/passwd", "/proc/self/environ"] {
        let error = fixture.fetch(url, None).await.unwrap_err();
        assert!(matches!(*error, ModelError::PathNotAllowed { .. }), "{url}: {error}");
    }
    let error = fixture.fetch(&path("missing"), None).await.unwrap_err();
    assert!(
        matches!(*error, ModelError::LocalFile { .. })
            && error.class() == ModelErrorClass::Permanent,
        "{error}"
    );
}

#[tokio::test]
async fn five_redirects_are_followed_and_each_is_checked() {
    let server =
        Server::start(|request| match request.path.trim_start_matches('/').parse::<u32>() {
            Ok(0) => Reply { status: 200, body: "x".into(), ..Reply::default() },
            Ok(n) => Reply::status(302).with("location", format!("/{}", n - 1)),
            Err(_) => Reply::status(307).with("location", &request.path[1..]),
        })
        .await;
    let fixture = StoreFixture::new();
    assert_eq!(fixture.fetch(&format!("{}/5", server.url), None).await.unwrap().bytes, 1);
    let error = fixture.fetch(&format!("{}/6", server.url), None).await.unwrap_err();
    assert!(error.to_string().contains("more than 5 redirects"), "{error}");
    for (to, reason) in [
        ("file:///etc/passwd", "another scheme, \"file\""),
        ("ftp://127.0.0.1/x", "another scheme, \"ftp\""),
        ("http://169.254.169.254/latest/meta-data", "metadata"),
        ("http://[::ffff:169.254.169.254]/", "metadata"),
        ("http://0xa9fea9fe/", "metadata"),
        ("http://[::1]/", "loopback"),
    ] {
        let error = fixture.fetch(&format!("{}/{to}", server.url), None).await.unwrap_err();
        assert_eq!(error.class(), ModelErrorClass::Permanent);
        assert!(error.to_string().contains(reason), "{to}: {error}");
    }
}

#[tokio::test]
async fn http_status_decides_whether_to_retry() {
    let server = Server::start(|request| match request.number {
        0 => Reply::status(503),
        1 => Reply::status(429),
        2 => Reply { status: 200, body: "now".into(), ..Reply::default() },
        _ => Reply::status(404),
    })
    .await;
    let fixture = StoreFixture::new();
    assert_eq!(fixture.fetch(&format!("{}/m", server.url), None).await.unwrap().bytes, 3);
    let error = fixture.fetch(&format!("{}/n?secret", server.url), None).await.unwrap_err();
    assert!(matches!(*error, ModelError::HttpStatus { status: 404, .. }), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[test]
fn store_cannot_be_opened_twice() {
    let fixture = StoreFixture::new();
    let error = ModelStore::open(&fixture.root(), policy()).unwrap_err();
    assert!(matches!(error, ModelError::StoreLocked(_)), "{error}");
}

#[tokio::test]
async fn archives_of_gnu_tar_are_unpacked_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let allowed = dir.path().canonicalize().unwrap();
    let source = allowed.join("source");
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
    let fixture = StoreFixture::with(StorePolicy { file_roots: vec![allowed.clone()], ..policy() });
    for format in ["gnu", "oldgnu", "pax", "ustar"] {
        let archive = allowed.join(format!("{format}.tar"));
        let made = std::process::Command::new("tar")
            .args(["--format", format, "-cf"])
            .args([archive.as_os_str(), "-C".as_ref(), source.as_os_str(), ".".as_ref()])
            .status()
            .unwrap();
        assert!(made.success());
        let artifact = fixture.fetch(archive.to_str().unwrap(), None).await.unwrap();
        let same = std::process::Command::new("diff")
            .args(["-r".as_ref(), source.as_os_str(), artifact.path.as_os_str()])
            .status()
            .unwrap();
        assert!(same.success(), "{format}");
    }
    let commented = [pax(b'g', &[("comment", "0123")]), file("a", b"x")];
    fs::write(allowed.join("git.tar"), tar(&commented)).unwrap();
    let artifact = fixture.fetch(allowed.join("git.tar").to_str().unwrap(), None).await.unwrap();
    assert_eq!(fs::read(artifact.path.join("a")).unwrap(), b"x");
}

#[tokio::test]
async fn single_directory_at_the_top_of_an_archive_is_kept() {
    let archives =
        [("m.tar", tar(&[file("top/a", b"x")])), ("m.zip", zip(&[member("top/a", b"x")]))];
    for (name, archive) in archives {
        let server = Server::serve_file(archive).await;
        let fixture = StoreFixture::new();
        let artifact = fixture.fetch(&format!("{}/{name}", server.url), None).await.unwrap();
        assert_eq!(fs::read(artifact.path.join("top/a")).unwrap(), b"x", "{name}");
        assert!(!artifact.path.join("a").exists(), "{name}");
    }
}
