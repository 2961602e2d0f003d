//! Files and sets of files from a model hub, with its faults.

use std::{fs, os::unix::fs::MetadataExt as _, time::Duration};

use neptune_harness::hub::{Hub, Repository};
use neptune_store::{
    ArtifactRequest, Digest, FetchProgress, HubProblem, ModelError, ModelErrorClass, StorePolicy,
};
use tokio::sync::watch;

use crate::fixture::{StoreFixture, files, noise, policy};

const TOKEN: &str = "hf_secret";

fn hub_policy(hub: &Hub) -> StorePolicy {
    StorePolicy { hub: hub.url().parse().unwrap(), ..policy() }
}

fn with_token(hub: &Hub) -> StorePolicy {
    let endpoint: neptune_store::HubEndpoint = hub.url().parse().unwrap();
    StorePolicy { hub: endpoint.with_token(TOKEN).unwrap(), ..policy() }
}

fn repository(weights: &[u8]) -> Repository {
    Repository::new("org/model").commit(
        "main",
        &[
            ("config.json", b"{}"),
            ("README.md", b"# Model"),
            ("onnx/weights.bin", weights),
            ("onnx/b c.txt", b"text"),
        ],
    )
}

/// The commit of a branch or tag.
fn commit(repository: &Repository, revision: &str) -> String {
    repository.resolve(revision).unwrap().to_owned()
}

fn problem(error: &ModelError) -> &HubProblem {
    match error.root() {
        ModelError::Hub(error) => &error.problem,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn large_file_has_the_digest_that_the_hub_states_and_small_one_its_git_id() {
    let weights = noise(3 << 20, 1);
    let hub = Hub::start(vec![repository(&weights)]).await;
    let fixture = StoreFixture::with(hub_policy(&hub));
    let large = fixture.fetch("hf://org/model/onnx/weights.bin", None).await.unwrap();
    assert_eq!(large.digest, Digest::of_bytes(&weights));
    assert_eq!(hub.sent(), weights.len() as u64);
    let small = fixture.fetch("hf://org/model@main/onnx/b c.txt", None).await.unwrap();
    assert_eq!(fs::read(&small.path).unwrap(), b"text");
    let requests = hub.requests().len();
    let again = fixture.fetch("hf://org/model/onnx/weights.bin", None).await.unwrap();
    assert_eq!(again.path, large.path);
    let known = fixture.fetch("hf://org/model/onnx/weights.bin", Some(large.digest)).await.unwrap();
    assert_eq!((&known.path, hub.requests().len()), (&large.path, requests), "asked once");
    let commit = commit(&repository(&weights), "main");
    for artifact in [&large, &small, &again] {
        assert_eq!((artifact.files, artifact.revision.as_ref()), (Some(1), Some(&commit)));
    }
    assert_eq!(known.revision, None, "its digest is enough, the hub is not asked");
}

#[tokio::test]
async fn set_is_a_directory_with_the_selected_files_and_one_digest() {
    let weights = noise(1 << 20, 2);
    let hub = Hub::start(vec![repository(&weights)]).await;
    hub.set_page(2);
    let fixture = StoreFixture::with(hub_policy(&hub));
    let set = fixture.fetch("hf://org/model", None).await.unwrap();
    let paths: Vec<_> = files(&set.path);
    assert_eq!(paths.len(), 3, "without README.md: {paths:?}");
    assert_eq!(fs::read(set.path.join("onnx/weights.bin")).unwrap(), weights);
    let lines =
        [("config.json", &b"{}"[..]), ("onnx/b c.txt", b"text"), ("onnx/weights.bin", &weights)]
            .map(|(path, content)| format!("{}  {path}\n", Digest::of_bytes(content)));
    assert_eq!(set.digest, Digest::of_bytes(lines.concat().as_bytes()));
    assert_eq!(set.bytes, 2 + 4 + weights.len() as u64);
    let pages = hub.requests().iter().filter(|request| request.contains("/tree/")).count();
    assert_eq!(pages, 3, "one per page");
    let requests = hub.requests().len();
    let again = fixture.fetch("hf://org/model", None).await.unwrap();
    assert_eq!((again.path, hub.requests().len()), (set.path.clone(), requests));
    let commit = commit(&repository(&weights), "main");
    assert_eq!((set.files, set.revision.as_ref()), (Some(3), Some(&commit)));
    let pinned = fixture.fetch("hf://org/model", Some(set.digest)).await.unwrap();
    assert_eq!(
        (pinned.files, again.revision, pinned.revision),
        (Some(3), set.revision, Some(commit))
    );
    let one = fixture.fetch("hf://org/model?files=**/*.txt", None).await.unwrap();
    assert_eq!(files(&one.path), [one.path.join("onnx/b c.txt")]);
    let partial = fs::read_dir(fixture.root().join("partial")).unwrap().count();
    assert_eq!(partial, 0, "no leftovers");
}

#[tokio::test]
async fn revisions_share_unchanged_files_and_keep_them_until_no_set_has_them() {
    let (weights, other) = (noise(1 << 20, 3), noise(1000, 4));
    let versions = Repository::new("org/model")
        .commit("v1", &[("a.bin", &weights), ("b.txt", b"1")])
        .commit("v2", &[("a.bin", &weights), ("b.txt", b"2"), ("c.bin", &other)]);
    let commits = ["v1", "v2"].map(|tag| commit(&versions, tag));
    let hub = Hub::start(vec![versions]).await;
    let fixture = StoreFixture::with(hub_policy(&hub));
    let first = fixture.fetch("hf://org/model@v1", None).await.unwrap();
    let second = fixture.fetch("hf://org/model@v2", None).await.unwrap();
    assert_eq!(
        [&first.revision, &second.revision],
        [&Some(commits[0].clone()), &Some(commits[1].clone())]
    );
    assert_eq!(hub.sent(), (weights.len() + other.len()) as u64, "the large file once");
    let inode = |path: &std::path::Path| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&first.path.join("a.bin")), inode(&second.path.join("a.bin")));

    let digest = second.digest;
    drop(second);
    fixture.store.collect_garbage(&[].into(), 0).unwrap();
    let contents = || fixture.store.contents().unwrap().len();
    assert_eq!(contents(), 3, "the list and the files of the set in use");
    let request = ArtifactRequest::parse("hf://org/model@v2", Some(digest)).unwrap();
    assert!(fixture.store.find(&request).is_none());
    drop(first);
    fixture.store.collect_garbage(&[].into(), 1).unwrap();
    assert_eq!(contents(), 3, "the newest unused set is kept with its files");
    fixture.store.collect_garbage(&[].into(), 0).unwrap();
    assert_eq!(contents(), 0);
}

#[tokio::test]
async fn damaged_file_of_a_set_removes_the_set() {
    let weights = noise(1000, 5);
    let hub = Hub::start(vec![repository(&weights)]).await;
    let fixture = StoreFixture::with(hub_policy(&hub));
    let set = fixture.fetch("hf://org/model", None).await.unwrap();
    let removed = fixture.store.discard(Digest::of_bytes(&weights)).unwrap();
    assert_eq!(removed, [Digest::of_bytes(&weights), set.digest].into());
    let again = fixture.fetch("hf://org/model", Some(set.digest)).await.unwrap();
    assert_eq!(fs::read(again.path.join("onnx/weights.bin")).unwrap(), weights);
}

#[tokio::test]
async fn download_that_is_cut_twenty_times_transfers_no_byte_twice() {
    let weights = noise(4 << 20, 6);
    let hub = Hub::start(vec![repository(&weights)]).await;
    hub.set_faults(|faults| faults.cut = Some(weights.len() / 20 + 1));
    let fixture = StoreFixture::with(hub_policy(&hub));
    let set = fixture.fetch_in_pieces("hf://org/model?files=onnx/*.bin").await;
    assert_eq!(fs::read(set.path.join("onnx/weights.bin")).unwrap(), weights);
    let bytes = hub.sent();
    assert!(bytes * 20 <= weights.len() as u64 * 21, "{bytes} of {}", weights.len());
    assert!(hub.downloads().len() >= 20, "{}", hub.downloads().len());
}

#[tokio::test]
async fn entity_tag_that_changes_midway_begins_the_file_again() {
    let weights = noise(1 << 20, 7);
    let hub = Hub::start(vec![repository(&weights)]).await;
    hub.set_faults(|faults| {
        (faults.cut, faults.etag_changes_after) = (Some(700_000), Some(1));
    });
    let fixture = StoreFixture::with(hub_policy(&hub));
    let artifact = fixture.fetch("hf://org/model/onnx/weights.bin", None).await.unwrap();
    assert_eq!(fs::read(&artifact.path).unwrap(), weights);
    let ranges: Vec<_> = hub.downloads().iter().map(|it| it.header("range").is_some()).collect();
    assert_eq!(ranges, [false, true, true], "the second response was the whole file");
}

#[tokio::test]
async fn token_goes_to_the_hub_only_and_opens_what_is_private_or_gated() {
    let weights = noise(1000, 8);
    let private = repository(&weights).private(TOKEN);
    let gated = Repository::new("org/gated").commit("main", &[("w.bin", b"gated")]).gated(TOKEN);
    let hub = Hub::start(vec![private, gated]).await;
    let anonymous = StoreFixture::with(hub_policy(&hub));
    let error = anonymous.fetch("hf://org/model/onnx/weights.bin", None).await.unwrap_err();
    assert_eq!(problem(&error), &HubProblem::RepositoryNotFound);
    assert!(error.to_string().contains("or it is private"), "{error}");
    for url in ["hf://org/gated/w.bin", "hf://org/gated"] {
        let error = anonymous.fetch(url, None).await.unwrap_err();
        assert_eq!(problem(&error), &HubProblem::Gated, "{url}");
        assert_eq!(error.class(), ModelErrorClass::Permanent, "{url}");
    }

    let fixture = StoreFixture::with(with_token(&hub));
    let set = fixture.fetch("hf://org/model", None).await.unwrap();
    assert_eq!(fs::read(set.path.join("onnx/weights.bin")).unwrap(), weights);
    fixture.fetch("hf://org/gated/w.bin", None).await.unwrap();
    // The server of large files refuses requests with a token.
    assert!(hub.downloads().iter().all(|request| request.header("authorization").is_none()));
}

#[tokio::test]
async fn token_is_read_from_its_file_for_each_download() {
    let hub = Hub::start(vec![repository(b"w").private(TOKEN)]).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let hub_token_file = Some(file.clone());
    let fixture = StoreFixture::with(StorePolicy { hub_token_file, ..hub_policy(&hub) });
    let error = fixture.fetch("hf://org/model/config.json", None).await.unwrap_err();
    assert!(matches!(error.root(), ModelError::TokenFile { .. }), "{error}");
    fs::write(&file, format!("{TOKEN}\n")).unwrap();
    fixture.fetch("hf://org/model/config.json", None).await.unwrap();
}

#[tokio::test]
async fn missing_names_are_errors_with_similar_ones() {
    let hub = Hub::start(vec![repository(b"w")]).await;
    let fixture = StoreFixture::with(hub_policy(&hub));
    for (url, expected) in [
        ("hf://org/none/x", "no such repository"),
        ("hf://org/none", "no such repository"),
        (
            "hf://org/model@mian/config.json",
            "no revision \"mian\"; use a branch, a tag or a commit of it; similar: main",
        ),
        ("hf://org/model@mian", "similar: main"),
        (
            "hf://org/model/confg.json",
            "no file \"confg.json\" at this revision; correct the path; similar: config.json",
        ),
        ("hf://org/model?files=*.onnx", "no file \"*.onnx\""),
    ] {
        let error = fixture.fetch(url, None).await.expect_err(url);
        assert!(error.to_string().contains(expected), "{url}: {error}");
        assert_eq!(error.class(), ModelErrorClass::Permanent, "{url}");
    }
    // A digest does not hide why there is no file.
    let digest = Some(Digest::of_bytes(b"x"));
    let error = fixture.fetch("hf://org/model/none.bin", digest).await.unwrap_err();
    assert!(matches!(problem(&error), HubProblem::FileNotFound { .. }), "{error}");
}

#[tokio::test]
async fn rate_limit_delays_the_next_request_as_long_as_the_hub_states() {
    let hub = Hub::start(vec![repository(b"w")]).await;
    hub.set_faults(|faults| {
        let header = ("ratelimit".to_owned(), "\"api\";r=0;t=3".to_owned());
        faults.rate_limited = Some((1, vec![header]));
    });
    let fixture = StoreFixture::with(hub_policy(&hub));
    let start = std::time::Instant::now();
    let (sender, mut progress) = watch::channel(FetchProgress::default());
    let request = ArtifactRequest::parse("hf://org/model/config.json", None).unwrap();
    let fetching = fixture.store.ensure(&request, &sender);
    let limited = async move {
        let limited = progress.wait_for(|now| now.last_error.is_some()).await.unwrap();
        limited.last_error.as_ref().unwrap().to_string()
    };
    let (artifact, message) = tokio::join!(fetching, limited);
    artifact.unwrap();
    assert!(message.contains("the next attempt is in 3 s"), "{message}");
    assert!(start.elapsed() >= Duration::from_secs(3), "{:?}", start.elapsed());
}

#[tokio::test]
async fn redirect_to_a_forbidden_address_is_refused() {
    let hub = Hub::start(vec![repository(b"w")]).await;
    hub.set_faults(|faults| faults.redirect = Some("http://169.254.169.254/files/x".to_owned()));
    let fixture = StoreFixture::with(hub_policy(&hub));
    let error = fixture.fetch("hf://org/model/onnx/weights.bin", None).await.unwrap_err();
    assert!(matches!(error.root(), ModelError::AddressRefused { .. }), "{error}");
    let default = StorePolicy { allowed_addresses: Vec::new(), ..hub_policy(&hub) };
    let error = StoreFixture::with(default).fetch("hf://org/model/x", None).await.unwrap_err();
    assert!(matches!(error.root(), ModelError::AddressRefused { .. }), "the hub itself: {error}");
}

#[tokio::test]
async fn other_bytes_than_the_hub_states_are_refused() {
    let hub = Hub::start(vec![repository(&noise(1000, 9))]).await;
    hub.set_faults(|faults| faults.wrong_bytes = true);
    let fixture = StoreFixture::with(hub_policy(&hub));
    for url in ["hf://org/model/onnx/weights.bin", "hf://org/model"] {
        let error = fixture.fetch(url, None).await.unwrap_err();
        assert!(matches!(error.root(), ModelError::DigestMismatch { .. }), "{url}: {error}");
    }
    hub.set_faults(|faults| faults.wrong_bytes = false);
    let error = fixture.fetch("hf://org/model", Some(Digest::of_bytes(b"x"))).await.unwrap_err();
    assert!(matches!(error.root(), ModelError::DigestMismatch { .. }), "{error}");
    assert!(!files(&fixture.root()).iter().any(|path| path.ends_with("set/meta.json")));
}

#[tokio::test]
async fn paths_that_leave_the_directory_are_refused_before_any_file_is_fetched() {
    for path in ["../evil.bin", "a/../../evil.bin", "/etc/evil.bin"] {
        let evil = Repository::new("org/evil").commit("main", &[("a.bin", b"a"), (path, b"evil")]);
        let hub = Hub::start(vec![evil]).await;
        let fixture = StoreFixture::with(hub_policy(&hub));
        let error = fixture.fetch("hf://org/evil", None).await.unwrap_err();
        assert!(error.to_string().contains("is refused"), "{path}: {error}");
        assert_eq!(hub.sent(), 0, "{path}");
    }
}

#[tokio::test]
async fn renamed_repository_is_followed_and_a_moved_branch_is_not_mixed() {
    let weights = noise(1000, 10);
    let hub = Hub::start(vec![repository(&weights).renamed_from("old/model")]).await;
    let fixture = StoreFixture::with(hub_policy(&hub));
    let file = fixture.fetch("hf://old/model/onnx/weights.bin", None).await.unwrap();
    assert_eq!(fs::read(&file.path).unwrap(), weights);
    let set = fixture.fetch("hf://old/model", None).await.unwrap();
    hub.set_repositories(|all| {
        all[0] = repository(&weights).commit("main", &[("config.json", b"new")]);
    });
    let again = fixture.fetch("hf://old/model", None).await.unwrap();
    assert_eq!(again.digest, set.digest, "a branch is resolved once");
    let other = StoreFixture::with(hub_policy(&hub));
    let error = other.fetch("hf://org/model", Some(set.digest)).await.unwrap_err();
    assert!(matches!(error.root(), ModelError::DigestMismatch { .. }), "{error}");
}
