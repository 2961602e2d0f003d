//! Watches datasets. Each test waits for the report of a change.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    path::Path,
    time::{Duration, Instant},
};

use neptune_datasets::{
    ChangeDetection, CountReport, DatasetError, LocalDataset, WatchIntervals, watch_dataset,
};
use neptune_sources::DatasetFormat;
use tokio::sync::watch::Receiver;

use crate::{DataDirs, annotation, append, lines};

/// The intervals of the agent, except that polling is too slow to have an effect on a test.
pub(crate) fn intervals() -> WatchIntervals {
    WatchIntervals {
        poll: Duration::from_secs(600),
        retry: Duration::from_secs(600),
        ..WatchIntervals::default()
    }
}

pub(crate) async fn until(
    reports: &mut Receiver<CountReport>,
    wanted: impl FnMut(&CountReport) -> bool,
) -> CountReport {
    let report = tokio::time::timeout(Duration::from_secs(10), reports.wait_for(wanted)).await;
    report.expect("expected report within 10 s").unwrap().clone()
}

async fn samples(reports: &mut Receiver<CountReport>, expected: u64) -> CountReport {
    let has = |report: &CountReport| {
        report.error.is_none()
            && report.counts.as_ref().is_some_and(|counts| counts.samples == expected)
    };
    until(reports, has).await
}

#[tokio::test]
async fn appended_lines_are_reported_within_two_seconds() {
    let dirs = DataDirs::new();
    let path = dirs.path("a.csv");
    fs::write(&path, lines(0, 100_000)).unwrap();
    let mut reports =
        watch_dataset(dirs.dataset("a.csv", DatasetFormat::Csv), dirs.policy(), intervals(), None);
    let first = samples(&mut reports, 100_000).await;
    assert_eq!(first.change_detection, Some(ChangeDetection::Events));

    let started = Instant::now();
    append(&path, lines(100_000, 100_010).as_bytes());
    let second = samples(&mut reports, 100_010).await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    let read = second.bytes_read - first.bytes_read;
    assert!(read < 4096, "{read} bytes were read");
}

#[tokio::test]
async fn reports_are_limited_to_one_per_second_and_include_the_last() {
    let dirs = DataDirs::new();
    let path = dirs.path("a.txt");
    fs::write(&path, "").unwrap();
    let mut reports =
        watch_dataset(dirs.dataset("a.txt", DatasetFormat::Txt), dirs.policy(), intervals(), None);
    samples(&mut reports, 0).await;
    let started = Instant::now();
    let writer = tokio::task::spawn_blocking(move || {
        for n in 0..2000 {
            append(&path, format!("{n}\n").as_bytes());
        }
    });
    let mut seen = 0_u32;
    until(&mut reports, |report| {
        seen += 1;
        report.counts.as_ref().is_some_and(|counts| counts.samples == 2000)
    })
    .await;
    writer.await.unwrap();
    // One report precedes the first change.
    let allowed = 2.0 + started.elapsed().as_secs_f64();
    assert!(f64::from(seen) <= allowed, "{seen} reports in {:?}", started.elapsed());
}

#[tokio::test]
async fn file_is_followed_through_replace_delete_and_create() {
    let dirs = DataDirs::new();
    let path = dirs.path("a.csv");
    fs::write(&path, lines(0, 10)).unwrap();
    let mut reports =
        watch_dataset(dirs.dataset("a.csv", DatasetFormat::Csv), dirs.policy(), intervals(), None);
    samples(&mut reports, 10).await;

    fs::write(dirs.path("a.csv.new"), lines(0, 20)).unwrap();
    fs::rename(dirs.path("a.csv.new"), &path).unwrap();
    samples(&mut reports, 20).await;

    fs::remove_file(&path).unwrap();
    let gone = until(&mut reports, |report| report.error.is_some()).await;
    assert_eq!(gone.error, Some(DatasetError::NotFound { path: path.clone() }));
    assert_eq!(gone.counts.unwrap().samples, 20, "the last known count stays");

    fs::write(&path, lines(0, 5)).unwrap();
    samples(&mut reports, 5).await;
    append(&path, b"more\n");
    samples(&mut reports, 6).await;
}

#[tokio::test]
async fn file_is_counted_once_its_directories_exist() {
    let dirs = DataDirs::new();
    let dataset = dirs.dataset("x/y/a.txt", DatasetFormat::Txt);
    let mut reports = watch_dataset(dataset, dirs.policy(), intervals(), None);
    until(&mut reports, |report| matches!(report.error, Some(DatasetError::NotFound { .. }))).await;
    fs::create_dir_all(dirs.path("x/y")).unwrap();
    fs::write(dirs.path("x/y/a.txt"), "a\n").unwrap();
    samples(&mut reports, 1).await;

    // The directories are replaced by others of the same names.
    fs::rename(dirs.path("x"), dirs.path("z")).unwrap();
    until(&mut reports, |report| report.error.is_some()).await;
    fs::create_dir_all(dirs.path("x/y")).unwrap();
    fs::write(dirs.path("x/y/a.txt"), "a\nb\n").unwrap();
    samples(&mut reports, 2).await;
}

#[tokio::test]
async fn annotation_directory_is_followed_through_changes() {
    let dirs = DataDirs::new();
    fs::create_dir(dirs.path("voc")).unwrap();
    let mut reports =
        watch_dataset(dirs.dataset("voc", DatasetFormat::Xml), dirs.policy(), intervals(), None);
    samples(&mut reports, 0).await;
    fs::write(dirs.path("voc/1.xml"), annotation("head")).unwrap();
    samples(&mut reports, 1).await;
    fs::create_dir(dirs.path("voc/more")).unwrap();
    fs::write(dirs.path("voc/more/2.xml"), annotation("head")).unwrap();
    samples(&mut reports, 2).await;
    fs::write(dirs.path("voc/more/2.xml"), annotation("helmet")).unwrap();
    let labels = |report: &CountReport| report.counts.clone().unwrap().labels.by_name;
    until(&mut reports, |report| labels(report).get("helmet") == Some(&1)).await;
    fs::remove_file(dirs.path("voc/1.xml")).unwrap();
    let last = samples(&mut reports, 1).await;
    assert!(!labels(&last).contains_key("head"));
}

#[tokio::test]
async fn changed_link_is_followed_and_refused_outside() {
    let dirs = DataDirs::new();
    fs::write(dirs.path("one.txt"), "1\n").unwrap();
    fs::write(dirs.path("two.txt"), "1\n2\n").unwrap();
    fs::write(dirs.outside("three.txt"), "1\n2\n3\n").unwrap();
    let link_to = |to| {
        symlink(to, dirs.path("new")).unwrap();
        fs::rename(dirs.path("new"), dirs.path("link.txt")).unwrap();
    };
    link_to(dirs.path("one.txt"));
    let mut reports = watch_dataset(
        dirs.dataset("link.txt", DatasetFormat::Txt),
        dirs.policy(),
        intervals(),
        None,
    );
    samples(&mut reports, 1).await;
    link_to(dirs.path("two.txt"));
    samples(&mut reports, 2).await;
    link_to(dirs.outside("three.txt"));
    until(&mut reports, |report| {
        matches!(report.error, Some(DatasetError::SymlinkOutsideAllowed { .. }))
    })
    .await;
    link_to(dirs.path("one.txt"));
    samples(&mut reports, 1).await;
}

/// Whether this process has an inotify watch on this directory.
fn is_watched(directory: &Path) -> bool {
    let inode = format!("ino:{:x} ", fs::metadata(directory).unwrap().ino());
    let files = fs::read_dir("/proc/self/fdinfo").unwrap();
    let text = |file: std::io::Result<fs::DirEntry>| {
        fs::read_to_string(file.unwrap().path()).unwrap_or_default()
    };
    let is_of_inode = |line: &str| line.starts_with("inotify ") && line.contains(&inode);
    files.map(text).any(|text| text.lines().any(is_of_inode))
}

#[tokio::test]
async fn link_to_a_directory_outside_is_not_watched() {
    let dirs = DataDirs::new();
    let outside = dirs.outside("archive/2026");
    fs::create_dir_all(&outside).unwrap();
    fs::create_dir_all(dirs.path("voc/more")).unwrap();
    fs::write(dirs.path("voc/1.xml"), annotation("head")).unwrap();
    symlink(dirs.outside("archive"), dirs.path("voc/all")).unwrap();
    let dataset = dirs.dataset("voc", DatasetFormat::Xml);
    let mut reports = watch_dataset(dataset, dirs.policy(), intervals(), None);
    samples(&mut reports, 1).await;
    assert!(is_watched(&dirs.path("voc/more")));
    assert!(!is_watched(&dirs.outside("archive")) && !is_watched(&outside));
    fs::write(dirs.path("voc/more/2.xml"), annotation("head")).unwrap();
    samples(&mut reports, 2).await;
    assert!(!is_watched(&outside));
}

#[tokio::test]
async fn dataset_that_is_a_link_outside_watches_nothing_there() {
    let dirs = DataDirs::new();
    fs::create_dir_all(dirs.outside("voc/more")).unwrap();
    fs::create_dir(dirs.path("voc")).unwrap();
    fs::write(dirs.path("voc/1.xml"), annotation("head")).unwrap();
    symlink(dirs.outside("voc"), dirs.path("link")).unwrap();
    for name in ["link", "link/more"] {
        let dataset = dirs.dataset(name, DatasetFormat::Xml);
        let mut reports = watch_dataset(dataset, dirs.policy(), intervals(), None);
        until(&mut reports, |report| {
            matches!(report.error, Some(DatasetError::SymlinkOutsideAllowed { .. }))
        })
        .await;
        assert!(!is_watched(&dirs.outside("voc")) && !is_watched(&dirs.outside("voc/more")));
        if name == "link" {
            // A link that is allowed is followed once it is there.
            fs::remove_file(dirs.path("link")).unwrap();
            symlink(dirs.path("voc"), dirs.path("link")).unwrap();
            samples(&mut reports, 1).await;
            fs::remove_file(dirs.path("link")).unwrap();
            symlink(dirs.outside("voc"), dirs.path("link")).unwrap();
        }
    }
}

#[tokio::test]
async fn corrupt_file_is_read_again_only_after_a_change() {
    let dirs = DataDirs::new();
    let path = dirs.path("a.json");
    fs::write(&path, format!("[{} {{}}] nonsense", "{}, ".repeat(10_000))).unwrap();
    let quick = WatchIntervals {
        min_gap: Duration::from_millis(20),
        retry: Duration::from_millis(20),
        ..intervals()
    };
    let mut reports =
        watch_dataset(dirs.dataset("a.json", DatasetFormat::Json), dirs.policy(), quick, None);
    let refused = until(&mut reports, |report| report.error.is_some()).await;
    assert!(matches!(refused.error, Some(DatasetError::MalformedJson { .. })));
    fs::write(&path, "[1, 2]").unwrap();
    let corrected = samples(&mut reports, 2).await;
    let read = corrected.bytes_read - refused.bytes_read;
    assert!(read < 4096, "{read} bytes were read");
}

#[tokio::test]
async fn changes_are_found_by_polling_without_inotify() {
    let dirs = DataDirs::new();
    fs::write(dirs.path("a.txt"), "1\n").unwrap();
    let slow = Duration::from_millis(100);
    let polling = WatchIntervals { use_events: false, min_gap: slow, poll: slow, retry: slow };
    let mut reports =
        watch_dataset(dirs.dataset("a.txt", DatasetFormat::Txt), dirs.policy(), polling, None);
    let first = samples(&mut reports, 1).await;
    assert!(matches!(first.change_detection, Some(ChangeDetection::Polling { .. })));
    append(&dirs.path("a.txt"), b"2\n");
    samples(&mut reports, 2).await;
}

#[tokio::test]
async fn file_system_without_events_is_reported() {
    let dataset = LocalDataset {
        path: "/proc/self/limits".into(),
        ..DataDirs::new().dataset("", DatasetFormat::Txt)
    };
    let policy = neptune_datasets::PathPolicy { allowed_roots: vec!["/proc".into()] };
    let mut reports = watch_dataset(dataset, policy, intervals(), None);
    let report = until(&mut reports, |report| report.change_detection.is_some()).await;
    assert_eq!(
        report.change_detection,
        Some(ChangeDetection::Polling {
            reason: "file system proc does not report changes".into()
        })
    );
}

#[tokio::test]
async fn restart_publishes_the_stored_count_and_reads_only_the_rest() {
    let dirs = DataDirs::new();
    let path = dirs.path("a.csv");
    fs::write(&path, lines(0, 50_000)).unwrap();
    let dataset = dirs.dataset("a.csv", DatasetFormat::Csv);
    let mut reports = watch_dataset(dataset.clone(), dirs.policy(), intervals(), None);
    let state = samples(&mut reports, 50_000).await.state.unwrap();
    drop(reports);
    let stored = serde_json::from_str(&serde_json::to_string(&*state).unwrap()).unwrap();

    append(&path, b"1,2,3\n");
    let mut reports = watch_dataset(dataset, dirs.policy(), intervals(), Some(stored));
    assert_eq!(reports.borrow().counts.as_ref().unwrap().samples, 50_000);
    let report = samples(&mut reports, 50_001).await;
    assert!(report.bytes_read < 4096, "{} bytes were read", report.bytes_read);
}

#[tokio::test]
async fn specification_error_is_reported_and_ends_the_watch() {
    let dirs = DataDirs::new();
    let dataset =
        LocalDataset { path: "relative.csv".into(), ..dirs.dataset("", DatasetFormat::Csv) };
    let mut reports = watch_dataset(dataset, dirs.policy(), intervals(), None);
    until(&mut reports, |report| matches!(report.error, Some(DatasetError::InvalidPath { .. })))
        .await;
    reports.borrow_and_update();
    assert!(reports.changed().await.is_err());
}

#[tokio::test]
async fn long_count_reports_its_progress() {
    let dirs = DataDirs::new();
    // A sparse file, which takes far longer to read than the test waits.
    fs::File::create(dirs.path("a.txt")).unwrap().set_len(64 << 30).unwrap();
    let mut reports =
        watch_dataset(dirs.dataset("a.txt", DatasetFormat::Txt), dirs.policy(), intervals(), None);
    let first = until(&mut reports, |report| report.bytes_read > 0).await.bytes_read;
    let later = until(&mut reports, |report| report.bytes_read > first).await;
    assert_eq!((later.counts, later.error), (None, None));
}
