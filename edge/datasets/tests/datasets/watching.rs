//! Watched datasets: every change is awaited as a report.

use std::{
    fs,
    os::unix::fs::symlink,
    time::{Duration, Instant},
};

use neptune_datasets::{DatasetSpec, Error, Format, Pace, Report, Watching, watch};
use tokio::sync::watch::Receiver;

use crate::{Place, annotation, append, lines};

/// As the agent has it, but polling cannot be what a test sees: only events are that fast.
pub(crate) fn pace() -> Pace {
    Pace { poll: Duration::from_secs(600), retry: Duration::from_secs(600), ..Pace::default() }
}

pub(crate) async fn until(
    reports: &mut Receiver<Report>,
    wanted: impl FnMut(&Report) -> bool,
) -> Report {
    let report = tokio::time::timeout(Duration::from_secs(10), reports.wait_for(wanted)).await;
    report.expect("no such report within 10 s").unwrap().clone()
}

async fn samples(reports: &mut Receiver<Report>, expected: u64) -> Report {
    let has = |report: &Report| {
        report.condition.is_none()
            && report.tally.as_ref().is_some_and(|tally| tally.samples == expected)
    };
    until(reports, has).await
}

#[tokio::test]
async fn ten_appended_lines_are_reported_within_two_seconds_without_reading_the_file_again() {
    let place = Place::new();
    let path = place.path("a.csv");
    fs::write(&path, lines(0, 100_000)).unwrap();
    let mut reports = watch(place.spec("a.csv", Format::Csv), place.policy(), pace(), None);
    let first = samples(&mut reports, 100_000).await;
    assert_eq!(first.watching, Some(Watching::Events));

    let started = Instant::now();
    append(&path, lines(100_000, 100_010).as_bytes());
    let second = samples(&mut reports, 100_010).await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    let read = second.bytes_read - first.bytes_read;
    assert!(read < 4096, "{read} bytes were read");
}

#[tokio::test]
async fn changes_are_reported_at_most_once_a_second_and_the_last_one_is_not_lost() {
    let place = Place::new();
    let path = place.path("a.txt");
    fs::write(&path, "").unwrap();
    let mut reports = watch(place.spec("a.txt", Format::Txt), place.policy(), pace(), None);
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
        report.tally.as_ref().is_some_and(|tally| tally.samples == 2000)
    })
    .await;
    writer.await.unwrap();
    // One is looked at before anything changed.
    let allowed = 2.0 + started.elapsed().as_secs_f64();
    assert!(f64::from(seen) <= allowed, "{seen} reports in {:?}", started.elapsed());
}

#[tokio::test]
async fn a_file_that_is_replaced_deleted_and_created_again_is_followed() {
    let place = Place::new();
    let path = place.path("a.csv");
    fs::write(&path, lines(0, 10)).unwrap();
    let mut reports = watch(place.spec("a.csv", Format::Csv), place.policy(), pace(), None);
    samples(&mut reports, 10).await;

    fs::write(place.path("a.csv.new"), lines(0, 20)).unwrap();
    fs::rename(place.path("a.csv.new"), &path).unwrap();
    samples(&mut reports, 20).await;

    fs::remove_file(&path).unwrap();
    let gone = until(&mut reports, |report| report.condition.is_some()).await;
    assert_eq!(gone.condition, Some(Error::Missing { path: path.clone() }));
    assert_eq!(gone.tally.unwrap().samples, 20, "the last known count stays");

    fs::write(&path, lines(0, 5)).unwrap();
    samples(&mut reports, 5).await;
    append(&path, b"more\n");
    samples(&mut reports, 6).await;
}

#[tokio::test]
async fn a_path_whose_directories_do_not_exist_yet_is_waited_for() {
    let place = Place::new();
    let spec = place.spec("x/y/a.txt", Format::Txt);
    let mut reports = watch(spec, place.policy(), pace(), None);
    until(&mut reports, |report| matches!(report.condition, Some(Error::Missing { .. }))).await;
    fs::create_dir_all(place.path("x/y")).unwrap();
    fs::write(place.path("x/y/a.txt"), "a\n").unwrap();
    samples(&mut reports, 1).await;

    // Again, with other directories of the same names.
    fs::rename(place.path("x"), place.path("z")).unwrap();
    until(&mut reports, |report| report.condition.is_some()).await;
    fs::create_dir_all(place.path("x/y")).unwrap();
    fs::write(place.path("x/y/a.txt"), "a\nb\n").unwrap();
    samples(&mut reports, 2).await;
}

#[tokio::test]
async fn a_directory_of_annotations_is_followed_through_adding_changing_and_removing() {
    let place = Place::new();
    fs::create_dir(place.path("voc")).unwrap();
    let mut reports = watch(place.spec("voc", Format::Xml), place.policy(), pace(), None);
    samples(&mut reports, 0).await;
    fs::write(place.path("voc/1.xml"), annotation("head")).unwrap();
    samples(&mut reports, 1).await;
    fs::create_dir(place.path("voc/more")).unwrap();
    fs::write(place.path("voc/more/2.xml"), annotation("head")).unwrap();
    samples(&mut reports, 2).await;
    fs::write(place.path("voc/more/2.xml"), annotation("helmet")).unwrap();
    let labels = |report: &Report| report.tally.clone().unwrap().labels.by_name;
    until(&mut reports, |report| labels(report).get("helmet") == Some(&1)).await;
    fs::remove_file(place.path("voc/1.xml")).unwrap();
    let last = samples(&mut reports, 1).await;
    assert!(!labels(&last).contains_key("head"));
}

#[tokio::test]
async fn a_link_that_is_turned_to_another_file_is_followed_and_out_of_bounds_refused() {
    let place = Place::new();
    fs::write(place.path("one.txt"), "1\n").unwrap();
    fs::write(place.path("two.txt"), "1\n2\n").unwrap();
    fs::write(place.outside("three.txt"), "1\n2\n3\n").unwrap();
    let turn = |to| {
        symlink(to, place.path("new")).unwrap();
        fs::rename(place.path("new"), place.path("link.txt")).unwrap();
    };
    turn(place.path("one.txt"));
    let mut reports = watch(place.spec("link.txt", Format::Txt), place.policy(), pace(), None);
    samples(&mut reports, 1).await;
    turn(place.path("two.txt"));
    samples(&mut reports, 2).await;
    turn(place.outside("three.txt"));
    until(&mut reports, |report| matches!(report.condition, Some(Error::LinkLeaves { .. }))).await;
    turn(place.path("one.txt"));
    samples(&mut reports, 1).await;
}

#[tokio::test]
async fn a_corrupt_file_is_not_read_again_before_it_changes() {
    let place = Place::new();
    let path = place.path("a.json");
    fs::write(&path, format!("[{} {{}}] nonsense", "{}, ".repeat(10_000))).unwrap();
    let quick = Pace { gap: Duration::from_millis(20), retry: Duration::from_millis(20), ..pace() };
    let mut reports = watch(place.spec("a.json", Format::Json), place.policy(), quick, None);
    let refused = until(&mut reports, |report| report.condition.is_some()).await;
    assert!(matches!(refused.condition, Some(Error::Json { .. })));
    fs::write(&path, "[1, 2]").unwrap();
    let healed = samples(&mut reports, 2).await;
    let read = healed.bytes_read - refused.bytes_read;
    assert!(read < 4096, "{read} bytes were read");
}

#[tokio::test]
async fn without_inotify_changes_are_found_by_looking() {
    let place = Place::new();
    fs::write(place.path("a.txt"), "1\n").unwrap();
    let slow = Duration::from_millis(100);
    let polling = Pace { events: false, gap: slow, poll: slow, retry: slow };
    let mut reports = watch(place.spec("a.txt", Format::Txt), place.policy(), polling, None);
    let first = samples(&mut reports, 1).await;
    assert!(matches!(first.watching, Some(Watching::Polling { .. })));
    append(&place.path("a.txt"), b"2\n");
    samples(&mut reports, 2).await;
}

#[tokio::test]
async fn a_file_system_without_events_is_told() {
    let spec =
        DatasetSpec { path: "/proc/self/limits".into(), ..Place::new().spec("", Format::Txt) };
    let policy = neptune_datasets::Policy { allowed_roots: vec!["/proc".into()] };
    let mut reports = watch(spec, policy, pace(), None);
    let report = until(&mut reports, |report| report.watching.is_some()).await;
    assert_eq!(
        report.watching,
        Some(Watching::Polling { reason: "proc has no events of changes".into() })
    );
}

#[tokio::test]
async fn after_a_restart_the_last_count_is_there_at_once_and_only_the_rest_is_read() {
    let place = Place::new();
    let path = place.path("a.csv");
    fs::write(&path, lines(0, 50_000)).unwrap();
    let spec = place.spec("a.csv", Format::Csv);
    let mut reports = watch(spec.clone(), place.policy(), pace(), None);
    let state = samples(&mut reports, 50_000).await.state.unwrap();
    drop(reports);
    let stored = serde_json::from_str(&serde_json::to_string(&*state).unwrap()).unwrap();

    append(&path, b"1,2,3\n");
    let mut reports = watch(spec, place.policy(), pace(), Some(stored));
    assert_eq!(reports.borrow().tally.as_ref().unwrap().samples, 50_000);
    let report = samples(&mut reports, 50_001).await;
    assert!(report.bytes_read < 4096, "{} bytes were read", report.bytes_read);
}

#[tokio::test]
async fn what_only_a_new_spec_can_heal_is_reported_and_ends_the_watch() {
    let place = Place::new();
    let spec = DatasetSpec { path: "relative.csv".into(), ..place.spec("", Format::Csv) };
    let mut reports = watch(spec, place.policy(), pace(), None);
    until(&mut reports, |report| matches!(report.condition, Some(Error::NotAbsolute { .. }))).await;
    reports.borrow_and_update();
    assert!(reports.changed().await.is_err());
}
