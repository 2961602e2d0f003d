//! Files that are edited, renamed and removed, at the source and at the replica.

use std::{collections::BTreeSet, fs, os::unix::fs::symlink};

use neptune_share::peers::{ContentSource as _, client::download::describe};
use neptune_share::replicas::{
    DatasetDescription, DatasetSource, Deletions, FileEnd, Replica, ReplicaError, SourceData,
};
use neptune_transfer::Digest;

use crate::fixture::{Fixture, files, name, noise};

const MIB: usize = 1024 * 1024;

#[tokio::test]
async fn edited_block_is_sent_alone() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    let mut replica = fixture.replica(Deletions::Follow, false);
    let (path, mut content) = (fixture.data().join("weights"), noise(8 * MIB + 10, 1));
    fs::write(&path, &content).unwrap();
    assert_eq!(fixture.update(&mut replica).await.fetched_blocks, 9);
    content[3 * MIB + 7] ^= 1;
    fs::write(&path, &content).unwrap();
    let report = fixture.update(&mut replica).await;
    assert_eq!((report.fetched_blocks, report.reused_blocks), (1, 8));
    content.truncate(5 * MIB + 3);
    fs::write(&path, &content).unwrap();
    let report = fixture.update(&mut replica).await;
    assert_eq!((report.fetched_blocks, report.fetched_bytes), (1, 3));
}

#[tokio::test]
async fn file_whose_end_changed_and_grew_is_replaced() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    let mut replica = fixture.replica(Deletions::Follow, false);
    let path = fixture.data().join("log");
    fs::write(&path, noise(2 * MIB + 500, 1)).unwrap();
    fixture.update(&mut replica).await;
    let mut content = noise(2 * MIB + 500, 1);
    content[2 * MIB + 100] ^= 1;
    content.extend(noise(700, 2));
    fs::write(&path, &content).unwrap();
    let report = fixture.update(&mut replica).await;
    assert!(report.reused_blocks == 2 && report.fetched_bytes <= 2 * 1200, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_and_renamed_images_need_no_block() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    let mut replica = fixture.replica(Deletions::Follow, false);
    let image =
        |folder: &str, number: u64| fixture.data().join(folder).join(format!("{number}.jpg"));
    let count = if std::env::var_os("REPLICAS_REAL_SIZE").is_some() { 10_000 } else { 1000 };
    fs::create_dir(fixture.data().join("a")).unwrap();
    for number in 0..count {
        fs::write(image("a", number), noise(500, number)).unwrap();
    }
    assert_eq!(fixture.update(&mut replica).await.fetched_blocks, count);

    fs::create_dir(fixture.data().join("b")).unwrap();
    for number in 0..count / 20 {
        fs::remove_file(image("a", number)).unwrap();
    }
    for number in count / 20..count / 10 {
        fs::rename(image("a", number), image("b", number)).unwrap();
    }
    let report = fixture.update(&mut replica).await;
    assert_eq!((report.fetched_blocks, report.reused_blocks), (0, count / 20));

    fs::remove_dir_all(fixture.data().join("a")).unwrap();
    fixture.update(&mut replica).await;
    assert!(!fixture.copy().join("a").exists(), "the empty directory is removed as well");
}

#[tokio::test]
async fn kept_files_stay_after_a_deletion_at_the_source() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    let mut replica = fixture.replica(Deletions::Keep, false);
    fs::write(fixture.data().join("a"), "a").unwrap();
    fixture.update(&mut replica).await;
    fs::remove_file(fixture.data().join("a")).unwrap();
    fs::write(fixture.data().join("b"), "b").unwrap();
    let generation = fixture.scan(false).await;
    fixture.sync(&mut replica, &generation).await.unwrap();
    assert_eq!(files(&fixture.copy()).len(), 2);
    assert_eq!(replica.generation(), Some(generation));
    drop(replica);
    let replica = fixture.replica(Deletions::Keep, true);
    assert_eq!(replica.local_changes(), 0, "a kept file is no change");
}

#[tokio::test]
async fn file_and_directory_replace_each_other() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    let mut replica = fixture.replica(Deletions::Follow, false);
    fs::write(fixture.data().join("x"), "file").unwrap();
    fs::write(fixture.data().join("empty"), "").unwrap();
    fixture.update(&mut replica).await;
    fs::remove_file(fixture.data().join("x")).unwrap();
    fs::create_dir(fixture.data().join("x")).unwrap();
    fs::write(fixture.data().join("x/y"), "in a directory").unwrap();
    fixture.update(&mut replica).await;
    fs::remove_dir_all(fixture.data().join("x")).unwrap();
    fs::write(fixture.data().join("x"), "file again").unwrap();
    fixture.update(&mut replica).await;
}

#[tokio::test]
async fn local_change_is_found_by_a_full_open_and_overwritten() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    let mut replica = fixture.replica(Deletions::Follow, false);
    for name in ["a", "b", "c"] {
        fs::write(fixture.data().join(name), noise(2 * MIB, 1)).unwrap();
    }
    fixture.update(&mut replica).await;
    let generation = fixture.scan(false).await;

    fs::write(fixture.copy().join("a"), "changed").unwrap();
    fs::remove_file(fixture.copy().join("b")).unwrap();
    fs::write(fixture.copy().join("d"), "of somebody else").unwrap();
    let mut replica = replica.reopen(true).unwrap();
    assert_eq!(replica.local_changes(), 3);
    assert_ne!(replica.root(), generation.root);
    let report = fixture.sync(&mut replica, &generation).await.unwrap();
    // One block is fetched to see that "changed" is not the beginning of the file.
    let blocks = (report.fetched_blocks, report.reused_blocks);
    assert_eq!(blocks, (1, 4), "c has the same blocks");
    assert_eq!(files(&fixture.copy()), files(&fixture.data()));
    assert_eq!(replica.reopen(true).unwrap().local_changes(), 0);
}

#[tokio::test]
async fn change_of_an_interrupted_sync_is_no_local_change() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    let mut replica = fixture.replica(Deletions::Follow, false);
    fs::write(fixture.data().join("a"), noise(MIB, 1)).unwrap();
    fixture.update(&mut replica).await;
    fs::write(fixture.data().join("a"), [noise(MIB, 1), noise(4 * MIB, 2)].concat()).unwrap();
    let generation = fixture.scan(false).await;
    fixture.link.cut_after(2 * MIB as u64);
    fixture.sync(&mut replica, &generation).await.unwrap_err();
    fixture.link.restore();
    assert_eq!(replica.progress().resent(), 1);
    let mut replica = replica.reopen(true).unwrap();
    assert_eq!(replica.local_changes(), 0);
    fixture.sync(&mut replica, &generation).await.unwrap();
    assert_eq!(files(&fixture.copy()), files(&fixture.data()));
}

#[tokio::test]
async fn single_file_is_copied_under_its_name_and_described() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    let path = fixture.directory.path().join("by-digest");
    fs::write(&path, noise(MIB, 1)).unwrap();
    let data = SourceData::File(path, "log.jsonl".parse().unwrap());
    let state = fixture.directory.path().join("file");
    let source = DatasetSource::open(data, name(), &state, FileEnd::Whole).unwrap();
    let (me, other) = ("replica".parse().unwrap(), "other".parse().unwrap());
    source.set_replicas(BTreeSet::from(["replica".parse().unwrap()]));
    assert_eq!(source.describe(&name(), &me), None, "before the first scan");
    let generation = source.scan(false).unwrap();
    let described: DatasetDescription =
        serde_json::from_slice(&source.describe(&name(), &me).unwrap()).unwrap();
    let file = Some("log.jsonl".parse().unwrap());
    assert_eq!(described, DatasetDescription { generation, file });
    assert_eq!(source.describe(&name(), &other), None);
    assert_eq!(source.describe(&Digest::of_bytes(b"another"), &me), None);
}

#[tokio::test]
async fn replica_asks_its_source_for_the_newest_generation() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    let mut connection = fixture.connect().await.unwrap();
    assert_eq!(describe(&mut connection, &name()).await.unwrap(), None, "before the first scan");
    fs::write(fixture.data().join("a"), "a").unwrap();
    let generation = fixture.scan(false).await;
    let described = describe(&mut connection, &name()).await.unwrap().unwrap();
    let described: DatasetDescription = serde_json::from_slice(&described).unwrap();
    assert_eq!(described, DatasetDescription { generation, file: None });
}

#[tokio::test]
async fn full_disk_ends_the_sync_before_a_block_is_written() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    fs::write(fixture.data().join("a"), "a").unwrap();
    let generation = fixture.scan(false).await;
    let state = fixture.directory.path().join("replica");
    let copy = fixture.copy();
    let mut replica = Replica::open(&copy, &state, Deletions::Follow, u64::MAX / 2, false).unwrap();
    let error = fixture.sync(&mut replica, &generation).await.unwrap_err();
    assert!(matches!(error, ReplicaError::DiskFull { .. }), "{error}");
    assert!(files(&copy).is_empty());
}

#[tokio::test]
async fn link_in_the_replica_is_replaced_and_not_followed() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    let outside = fixture.directory.path().join("outside");
    fs::create_dir_all(fixture.copy()).unwrap();
    fs::create_dir(&outside).unwrap();
    symlink(&outside, fixture.copy().join("sub")).unwrap();
    fs::create_dir(fixture.data().join("sub")).unwrap();
    fs::write(fixture.data().join("sub/a"), "a").unwrap();
    symlink("/etc/hostname", fixture.data().join("link")).unwrap();
    let mut replica = fixture.replica(Deletions::Follow, false);
    let generation = fixture.scan(false).await;
    fixture.sync(&mut replica, &generation).await.unwrap();
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(files(&fixture.copy()).len(), 1, "the source follows no link either");
}

#[tokio::test]
async fn node_that_is_no_replica_sees_nothing() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    fs::write(fixture.data().join("a"), "a").unwrap();
    let generation = fixture.scan(false).await;
    fixture.source.set_replicas(BTreeSet::from(["other".parse().unwrap()]));
    let mut replica = fixture.replica(Deletions::Follow, false);
    let error = fixture.sync(&mut replica, &generation).await.unwrap_err();
    assert!(error.to_string().contains("404"), "{error}");
    assert!(files(&fixture.copy()).is_empty());
}

#[tokio::test]
async fn generation_grows_over_restarts_and_only_with_changes() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    fs::write(fixture.data().join("a"), "a").unwrap();
    let first = fixture.scan(false).await;
    assert_eq!(fixture.scan(false).await, first);
    let (data, directory) = (fixture.data(), fixture.stop().await);
    let state = directory.path().join("source");
    let files = SourceData::Directory(data.clone());
    let again = DatasetSource::open(files, name(), &state, FileEnd::Whole).unwrap();
    assert_eq!(again.scan(true).unwrap(), first);
    fs::write(data.join("a"), "b").unwrap();
    assert_eq!(again.scan(true).unwrap().number, first.number + 1);
}

#[tokio::test]
async fn block_that_changed_since_the_manifest_is_refused() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    let mut replica = fixture.replica(Deletions::Follow, false);
    fs::write(fixture.data().join("a"), noise(100, 1)).unwrap();
    let generation = fixture.scan(false).await;
    fs::write(fixture.data().join("a"), noise(100, 2)).unwrap();
    assert!(fixture.sync(&mut replica, &generation).await.is_err());
    assert_eq!(replica.progress().bytes_behind(), 100);
    assert!(files(&fixture.copy()).is_empty());
    fixture.update(&mut replica).await;
    assert_eq!(replica.progress().bytes_behind(), 0);
}
