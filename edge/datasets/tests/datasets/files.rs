//! One file: counted on from where it ended, or from the start.

use std::{
    fs,
    os::unix::fs::{FileExt, symlink},
    time::{Duration, SystemTime},
};

use neptune_datasets::{Column, DatasetSpec, Error, Format, Options};
use proptest::prelude::*;

use crate::{Place, append, lines};

/// What reading the beginning and the end of a file again may cost.
const EDGES: u64 = 2048;

#[test]
fn the_specification_s_csv_of_1797_lines_has_1797_or_1796_samples_by_its_header() {
    let place = Place::new();
    fs::write(place.path("a.csv"), lines(0, 1797)).unwrap();
    let mut spec = place.spec("a.csv", Format::Csv);
    assert_eq!(place.count(&spec, None).0.unwrap().tally().samples, 1797);
    spec.options.header = true;
    assert_eq!(place.count(&spec, None).0.unwrap().tally().samples, 1796);
}

#[test]
fn appending_reads_only_what_was_appended() {
    let place = Place::new();
    let path = place.path("a.csv");
    fs::write(&path, lines(0, 100_000)).unwrap();
    let spec = place.spec("a.csv", Format::Csv);
    let (first, read) = place.count(&spec, None);
    let first = first.unwrap();
    assert!(read > 3_000_000, "{read}");

    let more = lines(100_000, 100_010);
    append(&path, more.as_bytes());
    let (second, read) = place.count(&spec, Some(&first));
    let second = second.unwrap();
    assert_eq!(second.tally().samples, 100_010);
    assert!(read <= more.len() as u64 + EDGES, "{read}");

    // Nothing happened: nothing is read.
    let (third, read) = place.count(&spec, Some(&second));
    assert_eq!((third.unwrap(), read), (second, 0));
}

#[test]
fn a_last_line_without_newline_is_not_counted_again_when_it_is_completed() {
    let place = Place::new();
    for format in [Format::Csv, Format::Txt, Format::Jsonl] {
        let path = place.path(format.as_str());
        let spec = place.spec(format.as_str(), format);
        let mut state = None;
        for (part, expected) in [("1,2\n3", 2), (",4", 2), ("\n", 2), ("5", 3), ("\n6\n", 4)] {
            append(&path, part.as_bytes());
            let counted = place.count(&spec, state.as_ref()).0.unwrap();
            assert_eq!(counted.tally().samples, expected, "{format}, after {part:?}");
            state = Some(counted);
        }
    }
}

#[test]
fn a_file_that_is_not_the_one_that_was_counted_is_counted_from_the_start() {
    let place = Place::new();
    let path = place.path("a.txt");
    let spec = place.spec("a.txt", Format::Txt);
    let before = lines(0, 1000);
    let rewrite = |how: &dyn Fn()| {
        let _ = fs::remove_file(&path);
        fs::write(&path, &before).unwrap();
        let known = place.count(&spec, None).0.unwrap();
        how();
        place.count(&spec, Some(&known)).0.unwrap().tally().samples
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
        fs::write(place.path("new"), lines(0, 1001)).unwrap();
        fs::rename(place.path("new"), &path).unwrap();
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
fn a_state_of_other_options_is_not_used() {
    let place = Place::new();
    fs::write(place.path("a.csv"), "class\ncat\ndog\ncat\n").unwrap();
    let spec = place.spec("a.csv", Format::Csv);
    let known = place.count(&spec, None).0.unwrap();
    let options =
        Options { label_column: Some(Column::Name("class".into())), ..Options::default() };
    let labelled = place.count(&DatasetSpec { options, ..spec }, Some(&known)).0.unwrap();
    assert_eq!(labelled.tally().samples, 3);
    assert_eq!(labelled.tally().labels.by_name["cat"], 2);
}

#[test]
fn a_large_file_is_read_by_two_threads_in_its_order() {
    let place = Place::new();
    let path = place.path("a.csv");
    // Larger than where the second thread begins, and with quotes open over the ends of chunks.
    let text = "1,\"first\nsecond\nthird, \"\"quoted\"\"\",2\n".repeat(300_000);
    fs::write(&path, &text).unwrap();
    let (counted, read) = place.count(&place.spec("a.csv", Format::Csv), None);
    assert_eq!(counted.unwrap().tally().samples, 300_000);
    assert!((text.len() as u64..=text.len() as u64 + EDGES).contains(&read), "{read}");
}

#[test]
fn a_corrupt_record_far_in_a_large_file_is_told_with_its_offset() {
    let place = Place::new();
    // A record of 100 zeros, its checksums computed with the published algorithm.
    let masked = |bytes: &[u8]| {
        crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let (length, data) = (100_u64.to_le_bytes(), [0; 100]);
    let record = [&length[..], &masked(&length), &data, &masked(&data)].concat();
    let mut bytes = record.repeat(90_000);
    let path = place.path("a.tfrecord");
    fs::write(&path, &bytes).unwrap();
    let spec = place.spec("a.tfrecord", Format::TfRecord);
    assert_eq!(place.count(&spec, None).0.unwrap().tally().samples, 90_000);

    bytes[record.len() * 88_000 + 50] = 1;
    fs::write(&path, &bytes).unwrap();
    let offset = (record.len() * 88_000) as u64;
    let error = place.count(&spec, None).0.unwrap_err();
    assert!(matches!(error, Error::CorruptRecord { offset: at, .. } if at == offset), "{error}");
}

#[test]
fn what_may_not_be_counted_is_a_condition_of_its_own() {
    let place = Place::new();
    fs::write(place.outside("a.txt"), "a\n").unwrap();
    fs::write(place.path("a.txt"), "a\n").unwrap();
    symlink(place.outside("a.txt"), place.path("leaves.txt")).unwrap();
    symlink(place.path("a.txt"), place.path("stays.txt")).unwrap();
    fs::create_dir(place.path("directory")).unwrap();
    let error = |name: &str, format| place.count(&place.spec(name, format), None).0.unwrap_err();
    assert!(matches!(error("none.txt", Format::Txt), Error::Missing { .. }));
    assert!(matches!(error("leaves.txt", Format::Txt), Error::LinkLeaves { .. }));
    assert!(matches!(error("directory", Format::Txt), Error::WrongKind { needed: "file", .. }));
    assert!(matches!(error("a.txt", Format::Images), Error::WrongKind { needed: "directory", .. }));
    assert!(matches!(error("../other/a.txt", Format::Txt), Error::NotAbsolute { .. }));
    let outside = DatasetSpec { path: place.outside("a.txt"), ..place.spec("", Format::Txt) };
    assert!(matches!(place.count(&outside, None).0, Err(Error::OutsideAllowed { .. })));
    let stays = place.count(&place.spec("stays.txt", Format::Txt), None).0.unwrap();
    assert_eq!(stays.tally().samples, 1);
}

#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let place = Place::new();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, place.path("pipe"), rustix::fs::FileType::Fifo, mode, 0)
        .unwrap();
    let refused = place.count(&place.spec("pipe", Format::Txt), None).0;
    assert!(matches!(refused, Err(Error::WrongKind { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// However a file was written, appended to and written anew, its count is that of reading it at once.
    #[test]
    fn any_history_of_a_file_counts_as_reading_it_at_once(
        steps in proptest::collection::vec((any::<bool>(), "[ab,\"\n\r{}\\[\\] ]{0,60}"), 1..6),
        format in prop::sample::select(&[Format::Csv, Format::Txt, Format::Jsonl][..]),
    ) {
        let place = Place::new();
        let (path, spec) = (place.path("lives"), place.spec("lives", format));
        let (mut state, mut now) = (None, SystemTime::UNIX_EPOCH);
        for (anew, text) in steps {
            if anew {
                fs::write(&path, &text).unwrap();
            } else {
                append(&path, text.as_bytes());
            }
            // The clock of a file system may be too slow for this test.
            now += Duration::from_millis(10);
            fs::File::open(&path).unwrap().set_modified(now).unwrap();
            let followed = place.count(&spec, state.as_ref()).0.unwrap();
            let whole = place.count(&spec, None).0.unwrap();
            prop_assert_eq!(followed.tally(), whole.tally());
            state = Some(followed);
        }
    }
}
