#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::options::Column;

fn count(options: &Options, chunks: &[&[u8]]) -> Tally {
    let mut csv = Csv::new(options).unwrap();
    for chunk in chunks {
        csv.feed(chunk).unwrap();
    }
    csv.tally()
}

fn headless() -> Options {
    Options { header: false, ..Options::default() }
}

/// What the `csv` crate counts.
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
fn records_are_counted_as_rfc_4180_has_them() {
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
        assert_eq!(count(&headless(), &[text.as_bytes()]).samples, expected, "{text:?}");
        assert_eq!(oracle(text.as_bytes()), expected, "the oracle, of {text:?}");
    }
}

#[test]
fn the_header_is_no_sample_and_names_the_columns() {
    let tally = count(&Options::default(), &[b"id,\"a \"\"b\"\"\", c \r\n1,2,3\r\n"]);
    assert_eq!(
        (tally.samples, tally.columns),
        (1, vec!["id".into(), "a \"b\"".into(), "c".into()])
    );
    let only = count(&Options::default(), &[b"id,na", b"me"]);
    assert_eq!((only.samples, only.columns), (0, vec!["id".into(), "name".into()]));
    assert_eq!(count(&Options::default(), &[b""]), Tally::default());
}

#[test]
fn a_byte_order_mark_is_not_part_of_the_first_name() {
    assert_eq!(count(&Options::default(), &[b"\xef\xbb", b"\xbfid,b\n"]).columns, ["id", "b"]);
    assert_eq!(count(&headless(), &[b"\xef\xbb"]).samples, 1);
    assert_eq!(count(&headless(), &[b"\xef\xbb", b"x\n"]).samples, 1);
}

#[test]
fn the_specification_s_file_of_1797_lines_has_1797_or_1796_samples_by_its_header() {
    let text = "7,label\n".repeat(1797);
    assert_eq!(count(&headless(), &[text.as_bytes()]).samples, 1797);
    assert_eq!(count(&Options::default(), &[text.as_bytes()]).samples, 1796);
}

#[test]
fn labels_are_counted_by_name_or_index_of_a_column() {
    let text = b"file,class\n1,cat\n2,\"dog\"\n3,\"c\"\"t\"\n4\n5,cat";
    for column in [Column::Name("class".into()), Column::Index(1)] {
        let tally = count(&Options { label_column: Some(column), ..Options::default() }, &[text]);
        let labels: Vec<_> =
            tally.labels.by_name.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        assert_eq!(labels, [("", 1), ("c\"t", 1), ("cat", 2), ("dog", 1)]);
        assert_eq!(tally.samples, 5);
    }
}

#[test]
fn a_label_column_that_is_missing_is_told_with_the_columns_there_are() {
    let options =
        Options { label_column: Some(Column::Name("klass".into())), ..Options::default() };
    let error = Csv::new(&options).unwrap().feed(b"file,class\n").unwrap_err();
    assert_eq!(error.to_string(), "csv: no column \"klass\"; columns: file, class");
}

#[test]
fn another_delimiter_decides_where_quotes_open() {
    let text = b"a;\"b\nc\";d\n";
    assert_eq!(count(&Options { delimiter: ';', ..headless() }, &[text]).samples, 1);
    assert_eq!(count(&headless(), &[text]).samples, 2);
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

/// `bytes` cut at all of `cuts`.
fn chunks<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

proptest! {
    #[test]
    fn the_csv_crate_counts_the_same(bytes in bytes()) {
        prop_assert_eq!(count(&headless(), &[&bytes]).samples, oracle(&bytes));
    }

    #[test]
    fn chunks_may_end_anywhere(
        bytes in bytes(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        header: bool,
        label in prop::option::of(0..1usize),
    ) {
        let options = Options { header, label_column: label.map(Column::Index), ..Options::default() };
        let (mut whole, mut cut) = (Csv::new(&options).unwrap(), Csv::new(&options).unwrap());
        whole.feed(&bytes).unwrap();
        for chunk in chunks(&bytes, &cuts) {
            cut.feed(chunk).unwrap();
        }
        prop_assert_eq!(&whole, &cut);
        prop_assert_eq!(whole.tally().labels.by_name.values().sum::<u64>(), label.map_or(0, |_| whole.tally().samples));
    }

    /// The last line counts while it has no end, and is not counted again when it gets one.
    #[test]
    fn at_every_cut_the_count_is_that_of_the_file_as_it_is_then(
        bytes in bytes(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 1..8),
    ) {
        let mut growing = Csv::new(&headless()).unwrap();
        let mut length = 0;
        for chunk in chunks(&bytes, &cuts) {
            growing.feed(chunk).unwrap();
            length += chunk.len();
            // The csv crate takes half a byte order mark at the end for nothing; here it is a record.
            if length > 2 {
                prop_assert_eq!(growing.tally().samples, oracle(&bytes[..length]));
            }
        }
    }
}
