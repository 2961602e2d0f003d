//! Unit tests of the csv counter. They are in `src` because `Csv` is private.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use neptune_sources::CsvColumn;

fn count(options: &FormatOptions, chunks: &[&[u8]]) -> SampleCounts {
    let mut csv = Csv::new(options).unwrap();
    for chunk in chunks {
        csv.feed(chunk).unwrap();
    }
    csv.counts()
}

fn without_header() -> FormatOptions {
    FormatOptions { header: false, ..FormatOptions::default() }
}

/// Counts the records with the `csv` crate.
fn oracle(bytes: &[u8]) -> u64 {
    let mut reader =
        ::csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bytes);
    let mut record = ::csv::ByteRecord::new();
    let mut records = 0;
    while reader.read_byte_record(&mut record).unwrap() {
        records += 1;
    }
    records
}

#[test]
fn records_are_counted_by_rfc_4180() {
    for (expected, text) in [
        (0, ""),
        (1, "a,b"),
        (1, "a,b\n"),
        (2, "a,b\r\nc,d"),
        (2, "a,b\r\nc,d\r\n"),
        (2, "a\rb\r"),
        (1, "\"a\nb\r\nc\",d\n"),
        (1, "\"a\"\"\n\"\"b\"\n"),
        (2, "\"a\"\n\"b\"\n"),
        (1, "\"\"\n"),
        (1, ",\n"),
        (2, "a\n\n\r\n\nb\n\n"),
        (2, "3\" pipe,1\n4\" pipe,2\n"),
        (2, "\"a\"x\"\n\"b\"\n"),
        (1, "\"never closed\n1\n2\n"),
        (0, "\u{feff}"),
        (1, "\u{feff}\"a\nb\"\n"),
    ] {
        assert_eq!(count(&without_header(), &[text.as_bytes()]).samples, expected, "{text:?}");
        assert_eq!(oracle(text.as_bytes()), expected, "csv crate, {text:?}");
    }
}

#[test]
fn header_names_the_columns_and_is_not_counted() {
    let counts = count(&FormatOptions::default(), &[b"id,\"a \"\"b\"\"\", c \r\n1,2,3\r\n"]);
    assert_eq!(
        (counts.samples, counts.columns),
        (1, vec!["id".into(), "a \"b\"".into(), "c".into()])
    );
    let only = count(&FormatOptions::default(), &[b"id,na", b"me"]);
    assert_eq!((only.samples, only.columns), (0, vec!["id".into(), "name".into()]));
    assert_eq!(count(&FormatOptions::default(), &[b""]), SampleCounts::default());
}

#[test]
fn byte_order_mark_is_not_part_of_the_first_name() {
    assert_eq!(
        count(&FormatOptions::default(), &[b"\xef\xbb", b"\xbfid,b\n"]).columns,
        ["id", "b"]
    );
    assert_eq!(count(&without_header(), &[b"\xef\xbb"]).samples, 1);
    assert_eq!(count(&without_header(), &[b"\xef\xbb", b"x\n"]).samples, 1);
}

#[test]
fn header_option_reduces_the_count_of_1797_lines_by_one() {
    let text = "7,label\n".repeat(1797);
    assert_eq!(count(&without_header(), &[text.as_bytes()]).samples, 1797);
    assert_eq!(count(&FormatOptions::default(), &[text.as_bytes()]).samples, 1796);
}

#[test]
fn labels_are_counted_by_column_name_or_index() {
    let text = b"file,class\n1,cat\n2,\"dog\"\n3,\"c\"\"t\"\n4\n5,cat";
    for column in [CsvColumn::Name("class".into()), CsvColumn::Index(1)] {
        let counts = count(
            &FormatOptions { label_column: Some(column), ..FormatOptions::default() },
            &[text],
        );
        let labels: Vec<_> =
            counts.labels.by_name.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        assert_eq!(labels, [("", 1), ("c\"t", 1), ("cat", 2), ("dog", 1)]);
        assert_eq!(counts.samples, 5);
    }
}

#[test]
fn missing_label_column_is_reported_with_the_existing_columns() {
    let options = FormatOptions {
        label_column: Some(CsvColumn::Name("klass".into())),
        ..FormatOptions::default()
    };
    let error = Csv::new(&options).unwrap().feed(b"file,class\n").unwrap_err();
    assert_eq!(error.to_string(), "csv: no column \"klass\"; columns: file, class");
}

#[test]
fn quotes_open_after_the_configured_delimiter() {
    let text = b"a;\"b\nc\";d\n";
    assert_eq!(count(&FormatOptions { delimiter: ';', ..without_header() }, &[text]).samples, 1);
    assert_eq!(count(&without_header(), &[text]).samples, 2);
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let any = proptest::collection::vec(prop::sample::select(&b"ab,\"\n\r \xef"[..]), 0..300);
    let field = prop_oneof!["[ab]{0,30}", "\"([ab,\n\r]|\"\"){0,50}\""];
    let records =
        proptest::collection::vec((proptest::collection::vec(field, 1..5), "\r?\n"), 0..30);
    let formed = records.prop_map(|records| {
        records
            .into_iter()
            .map(|(fields, end)| fields.join(",") + &end)
            .collect::<String>()
            .into_bytes()
    });
    prop_oneof![any, formed]
}

/// Splits `bytes` at each of `cuts`.
fn chunks<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

proptest! {
    #[test]
    fn count_equals_that_of_the_csv_crate(bytes in bytes()) {
        prop_assert_eq!(count(&without_header(), &[&bytes]).samples, oracle(&bytes));
    }

    #[test]
    fn count_does_not_depend_on_chunk_boundaries(
        bytes in bytes(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        header: bool,
        label in prop::option::of(0..1usize),
    ) {
        let options = FormatOptions { header, label_column: label.map(CsvColumn::Index), ..FormatOptions::default() };
        let (mut whole, mut cut) = (Csv::new(&options).unwrap(), Csv::new(&options).unwrap());
        whole.feed(&bytes).unwrap();
        for chunk in chunks(&bytes, &cuts) {
            cut.feed(chunk).unwrap();
        }
        prop_assert_eq!(&whole, &cut);
        prop_assert_eq!(whole.counts().labels.by_name.values().sum::<u64>(), label.map_or(0, |_| whole.counts().samples));
    }

    /// The last line counts while it is incomplete, and does not count again when it is completed.
    #[test]
    fn count_of_a_growing_file_equals_that_of_its_content(
        bytes in bytes(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 1..8),
    ) {
        let mut growing = Csv::new(&without_header()).unwrap();
        let mut length = 0;
        for chunk in chunks(&bytes, &cuts) {
            growing.feed(chunk).unwrap();
            length += chunk.len();
            // The csv crate ignores an incomplete byte order mark at the end; here it is a record.
            if length > 2 {
                prop_assert_eq!(growing.counts().samples, oracle(&bytes[..length]));
            }
        }
    }
}
