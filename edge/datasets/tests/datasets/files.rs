//! Counts one file, resumed or from the start.

use std::{
    fs,
    os::unix::fs::{FileExt, symlink},
    time::{Duration, SystemTime},
};

use neptune_datasets::{DatasetError, LocalDataset};
use neptune_sources::{CsvColumn, DatasetFormat, FormatOptions};
use proptest::prelude::*;
use serde_json::json;

use crate::{DataDirs, annotation, append, lines};

/// Maximum number of bytes read again at the start and the end of a file.
const EDGES: u64 = 2048;

#[test]
fn header_option_reduces_the_count_of_1797_lines_by_one() {
    let dirs = DataDirs::new();
    fs::write(dirs.path("a.csv"), lines(0, 1797)).unwrap();
    let mut dataset = dirs.dataset("a.csv", DatasetFormat::Csv);
    assert_eq!(dirs.count(&dataset, None).0.unwrap().counts().samples, 1797);
    dataset.options.header = true;
    assert_eq!(dirs.count(&dataset, None).0.unwrap().counts().samples, 1796);
}

#[test]
fn append_reads_only_the_new_bytes() {
    let dirs = DataDirs::new();
    let path = dirs.path("a.csv");
    fs::write(&path, lines(0, 100_000)).unwrap();
    let dataset = dirs.dataset("a.csv", DatasetFormat::Csv);
    let (first, read) = dirs.count(&dataset, None);
    let first = first.unwrap();
    assert!(read > 3_000_000, "{read}");

    let more = lines(100_000, 100_010);
    append(&path, more.as_bytes());
    let (second, read) = dirs.count(&dataset, Some(&first));
    let second = second.unwrap();
    assert_eq!(second.counts().samples, 100_010);
    assert!(read <= more.len() as u64 + EDGES, "{read}");

    // Without a change, nothing is read.
    let (third, read) = dirs.count(&dataset, Some(&second));
    assert_eq!((third.unwrap(), read), (second, 0));
}

#[test]
fn unterminated_last_line_counts_once() {
    let dirs = DataDirs::new();
    for format in [DatasetFormat::Csv, DatasetFormat::Txt, DatasetFormat::Jsonl] {
        let path = dirs.path(format.as_str());
        let dataset = dirs.dataset(format.as_str(), format);
        let mut state = None;
        for (part, expected) in [("1,2\n3", 2), (",4", 2), ("\n", 2), ("5", 3), ("\n6\n", 4)] {
            append(&path, part.as_bytes());
            let counted = dirs.count(&dataset, state.as_ref()).0.unwrap();
            assert_eq!(counted.counts().samples, expected, "{format}, after {part:?}");
            state = Some(counted);
        }
    }
}

#[test]
fn replaced_or_truncated_file_is_counted_from_the_start() {
    let dirs = DataDirs::new();
    let path = dirs.path("a.txt");
    let dataset = dirs.dataset("a.txt", DatasetFormat::Txt);
    let before = lines(0, 1000);
    let rewrite = |how: &dyn Fn()| {
        let _ = fs::remove_file(&path);
        fs::write(&path, &before).unwrap();
        let known = dirs.count(&dataset, None).0.unwrap();
        how();
        dirs.count(&dataset, Some(&known)).0.unwrap().counts().samples
    };
    let truncated = rewrite(&|| fs::write(&path, lines(0, 10)).unwrap());
    assert_eq!(truncated, 10);
    let longer_with_another_beginning = rewrite(&|| fs::write(&path, lines(5, 1500)).unwrap());
    assert_eq!(longer_with_another_beginning, 1495);
    let longer_with_the_same_beginning = rewrite(&|| {
        let mut text = lines(0, 100);
        text.push_str(&lines(0, 2000));
        fs::write(&path, text).unwrap();
    });
    assert_eq!(longer_with_the_same_beginning, 2100);
    let replaced = rewrite(&|| {
        fs::write(dirs.path("new"), lines(0, 1001)).unwrap();
        fs::rename(dirs.path("new"), &path).unwrap();
    });
    assert_eq!(replaced, 1001);
    let of_the_same_length = rewrite(&|| {
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(b"\n\n\n", (before.len() / 2) as u64).unwrap();
        let later = file.metadata().unwrap().modified().unwrap() + Duration::from_secs(1);
        file.set_modified(later).unwrap();
    });
    assert!((1001..=1003).contains(&of_the_same_length), "{of_the_same_length}");
}

#[test]
fn state_with_other_options_is_ignored() {
    let dirs = DataDirs::new();
    fs::write(dirs.path("a.csv"), "class\ncat\ndog\ncat\n").unwrap();
    let dataset = dirs.dataset("a.csv", DatasetFormat::Csv);
    let known = dirs.count(&dataset, None).0.unwrap();
    let options = FormatOptions {
        label_column: Some(CsvColumn::Name("class".into())),
        ..FormatOptions::default()
    };
    let labelled = dirs.count(&LocalDataset { options, ..dataset }, Some(&known)).0.unwrap();
    assert_eq!(labelled.counts().samples, 3);
    assert_eq!(labelled.counts().labels.by_name["cat"], 2);
}

/// An agent resumes the counts that an earlier release has stored. A change of the layout makes it
/// read all data again.
#[test]
fn stored_state_keeps_its_layout() {
    let dirs = DataDirs::new();
    fs::write(dirs.path("a.csv"), "class\ncat\ndog\ncat\n").unwrap();
    fs::write(dirs.path("a.json"), "[1, 2]").unwrap();
    fs::create_dir(dirs.path("voc")).unwrap();
    fs::write(dirs.path("voc/1.xml"), annotation("cat")).unwrap();
    let stored = |dataset: &LocalDataset| {
        let state = dirs.count(dataset, None).0.unwrap();
        serde_json::to_value(&state).unwrap()
    };
    let options = FormatOptions {
        label_column: Some(CsvColumn::Name("class".into())),
        ..FormatOptions::default()
    };
    let csv = stored(&LocalDataset { options, ..dirs.dataset("a.csv", DatasetFormat::Csv) });
    assert_eq!(csv["spec"]["options"]["labelColumn"], "class");
    assert_eq!(csv["tally"]["labels"]["by_name"], json!({"cat": 2, "dog": 1}));
    assert_eq!(csv["known"]["file"]["counter"]["bytes"], 18);
    let expected = json!({
        "delimiter": 44, "at": "RecordStart", "ended": 4, "mark": null,
        "header": {"names": ["class"], "field": []},
        "labels": {
            "wanted": "class", "index": 0, "current": 0, "label": [],
            "counted": {"by_name": {"cat": 2, "dog": 1}, "other": 0},
        },
    });
    assert_eq!(csv["known"]["file"]["counter"]["state"], json!({"csv": expected}));

    let json = stored(&dirs.dataset("a.json", DatasetFormat::Json));
    let expected = json!({
        "member": null, "samples": 2, "offset": 6, "depth": 0, "string": "No", "place": "Done",
        "key": [], "found": false,
    });
    assert_eq!(json["known"]["file"]["counter"]["state"], json!({"json": expected}));

    let xml = stored(&dirs.dataset("voc", DatasetFormat::Xml));
    assert_eq!(xml["known"]["directory"]["index"]["labels"], json!(["cat"]));
}

#[test]
fn two_threads_count_a_large_file_in_order() {
    let dirs = DataDirs::new();
    let path = dirs.path("a.csv");
    // Large enough for two threads, with quoted fields across chunk boundaries.
    let text = "1,\"first\nsecond\nthird, \"\"quoted\"\"\",2\n".repeat(300_000);
    fs::write(&path, &text).unwrap();
    let (counted, read) = dirs.count(&dirs.dataset("a.csv", DatasetFormat::Csv), None);
    assert_eq!(counted.unwrap().counts().samples, 300_000);
    assert!((text.len() as u64..=text.len() as u64 + EDGES).contains(&read), "{read}");
}

#[test]
fn corrupt_record_in_a_large_file_is_reported_with_its_offset() {
    let dirs = DataDirs::new();
    // A record of 100 zeros, its checksums computed with the published algorithm.
    let masked = |bytes: &[u8]| {
        crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let (length, data) = (100_u64.to_le_bytes(), [0; 100]);
    let record = [&length[..], &masked(&length), &data, &masked(&data)].concat();
    let mut bytes = record.repeat(90_000);
    let path = dirs.path("a.tfrecord");
    fs::write(&path, &bytes).unwrap();
    let dataset = dirs.dataset("a.tfrecord", DatasetFormat::TfRecord);
    assert_eq!(dirs.count(&dataset, None).0.unwrap().counts().samples, 90_000);

    bytes[record.len() * 88_000 + 50] = 1;
    fs::write(&path, &bytes).unwrap();
    let offset = (record.len() * 88_000) as u64;
    let error = dirs.count(&dataset, None).0.unwrap_err();
    assert!(
        matches!(error, DatasetError::CorruptRecord { offset: at, .. } if at == offset),
        "{error}"
    );
}

#[test]
fn each_refused_path_has_its_own_error() {
    let dirs = DataDirs::new();
    fs::write(dirs.outside("a.txt"), "a\n").unwrap();
    fs::write(dirs.path("a.txt"), "a\n").unwrap();
    symlink(dirs.outside("a.txt"), dirs.path("leaves.txt")).unwrap();
    symlink(dirs.path("a.txt"), dirs.path("stays.txt")).unwrap();
    let error = |name: &str, format| dirs.count(&dirs.dataset(name, format), None).0.unwrap_err();
    assert!(matches!(error("none.txt", DatasetFormat::Txt), DatasetError::NotFound { .. }));
    assert!(matches!(
        error("leaves.txt", DatasetFormat::Txt),
        DatasetError::SymlinkOutsideAllowed { .. }
    ));
    assert!(matches!(
        error("a.txt", DatasetFormat::Images),
        DatasetError::WrongFileType { needed: "directory", .. }
    ));
    assert!(matches!(
        error("../other/a.txt", DatasetFormat::Txt),
        DatasetError::InvalidPath { .. }
    ));
    let outside =
        LocalDataset { path: dirs.outside("a.txt"), ..dirs.dataset("", DatasetFormat::Txt) };
    assert!(matches!(dirs.count(&outside, None).0, Err(DatasetError::OutsideAllowed { .. })));
    let stays = dirs.count(&dirs.dataset("stays.txt", DatasetFormat::Txt), None).0.unwrap();
    assert_eq!(stays.counts().samples, 1);
}

#[test]
fn pipe_is_refused_without_waiting() {
    let dirs = DataDirs::new();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, dirs.path("pipe"), rustix::fs::FileType::Fifo, mode, 0)
        .unwrap();
    let refused = dirs.count(&dirs.dataset("pipe", DatasetFormat::Txt), None).0;
    assert!(matches!(refused, Err(DatasetError::WrongFileType { needed: "file", .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn resumed_count_equals_full_count_after_any_writes(
        steps in proptest::collection::vec((any::<bool>(), "[ab,\"\n\r{}\\[\\] ]{0,60}"), 1..6),
        format in prop::sample::select(&[DatasetFormat::Csv, DatasetFormat::Txt, DatasetFormat::Jsonl][..]),
    ) {
        let dirs = DataDirs::new();
        let (path, dataset) = (dirs.path("file"), dirs.dataset("file", format));
        let (mut state, mut now) = (None, SystemTime::UNIX_EPOCH);
        for (rewrite, text) in steps {
            if rewrite {
                fs::write(&path, &text).unwrap();
            } else {
                append(&path, text.as_bytes());
            }
            // The resolution of the file system clock may be too low for this test.
            now += Duration::from_millis(10);
            fs::File::open(&path).unwrap().set_modified(now).unwrap();
            let followed = dirs.count(&dataset, state.as_ref()).0.unwrap();
            let whole = dirs.count(&dataset, None).0.unwrap();
            prop_assert_eq!(followed.counts(), whole.counts());
            state = Some(followed);
        }
    }
}
