//! Counts directories of images, of annotations, and of files with many samples.

use std::{fs, os::unix::fs::symlink};

use neptune_datasets::LocalDataset;
use neptune_sources::{DatasetFormat, FormatOptions};
use proptest::prelude::*;

use crate::{DataDirs, annotation, append, lines};

#[test]
fn images_are_counted_by_extension_in_subdirectories() {
    let dirs = DataDirs::new();
    fs::create_dir_all(dirs.path("set/cats/deep")).unwrap();
    for name in [
        "a.jpg",
        "b.JPEG",
        "cats/c.png",
        "cats/deep/d.webp",
        "readme.txt",
        "cats/e.jpg.part",
        "noextension",
    ] {
        fs::write(dirs.path("set").join(name), "12345").unwrap();
    }
    fs::create_dir(dirs.path("set/directory.jpg")).unwrap();
    let counts =
        dirs.count(&dirs.dataset("set", DatasetFormat::Images), None).0.unwrap().counts().clone();
    assert_eq!((counts.samples, counts.bytes, counts.skipped), (4, 20, 0));
}

#[test]
fn links_to_files_are_followed_within_the_allowed_directories() {
    let dirs = DataDirs::new();
    fs::create_dir(dirs.path("set")).unwrap();
    fs::write(dirs.path("real.png"), "1").unwrap();
    fs::write(dirs.outside("out.png"), "1").unwrap();
    symlink(dirs.path("real.png"), dirs.path("set/in.png")).unwrap();
    symlink(dirs.outside("out.png"), dirs.path("set/out.png")).unwrap();
    symlink(dirs.path("none.png"), dirs.path("set/dangling.png")).unwrap();
    symlink(dirs.path("set"), dirs.path("set/loop")).unwrap();
    let counts =
        dirs.count(&dirs.dataset("set", DatasetFormat::Images), None).0.unwrap().counts().clone();
    assert_eq!((counts.samples, counts.skipped), (1, 1));
    assert!(counts.skipped_example.unwrap().contains("out.png"));
}

#[test]
fn annotation_classes_are_counted_and_only_changed_files_read() {
    let dirs = DataDirs::new();
    fs::create_dir_all(dirs.path("voc/Annotations")).unwrap();
    let file = |name: &str| dirs.path("voc/Annotations").join(name);
    for n in 0..300 {
        fs::write(
            file(&format!("{n}.xml")),
            annotation(if n % 3 == 0 { "helmet" } else { "head" }),
        )
        .unwrap();
    }
    fs::write(file("broken.xml"), "<annotation><object>").unwrap();
    let dataset = dirs.dataset("voc", DatasetFormat::Xml);
    let (first, all) = dirs.count(&dataset, None);
    let first = first.unwrap();
    let counts = first.counts();
    assert_eq!((counts.samples, counts.skipped), (300, 1));
    assert_eq!((counts.labels.by_name["helmet"], counts.labels.by_name["head"]), (100, 200));
    assert!(counts.skipped_example.as_ref().unwrap().contains("broken.xml"));

    let stored = serde_json::from_str(&serde_json::to_string(&first).unwrap()).unwrap();
    fs::write(file("new.xml"), annotation("vest")).unwrap();
    fs::write(file("0.xml"), annotation("head")).unwrap();
    fs::remove_file(file("3.xml")).unwrap();
    fs::write(file("broken.xml"), annotation("head")).unwrap();
    let (second, read) = dirs.count(&dataset, Some(&stored));
    let second = second.unwrap();
    assert_eq!(second, dirs.count(&dataset, None).0.unwrap());
    let labels = &second.counts().labels.by_name;
    assert_eq!((labels["helmet"], labels["head"], labels["vest"]), (98, 202, 1));
    assert_eq!((second.counts().samples, second.counts().skipped), (301, 0));
    assert!(read < all / 10, "{read} of {all}");

    let (third, read) = dirs.count(&dataset, Some(&second));
    assert_eq!((third.unwrap(), read), (second, 0));
}

#[test]
fn directory_has_the_samples_of_all_its_files() {
    let dirs = DataDirs::new();
    fs::create_dir_all(dirs.path("set/deep")).unwrap();
    let file = |name: &str| dirs.path("set").join(name);
    fs::write(file("a.csv"), "class,x\ncat,1\ndog,2\n").unwrap();
    fs::write(file("deep/b.csv"), "class,x\ncat,3\n").unwrap();
    fs::write(file("readme.txt"), "not\ncounted\nas csv\n").unwrap();
    let options = serde_json::from_str(r#"{"labelColumn": "class"}"#).unwrap();
    let dataset = LocalDataset { options, ..dirs.dataset("set", DatasetFormat::Csv) };
    let counts = dirs.count(&dataset, None).0.unwrap().counts().clone();
    assert_eq!((counts.samples, counts.bytes, counts.skipped), (3, 34, 0));
    assert_eq!(counts.columns, ["class", "x"]);
    assert_eq!((counts.labels.by_name["cat"], counts.labels.by_name["dog"]), (2, 1));

    fs::write(file("c.csv"), "x\n1\n").unwrap();
    let counts = dirs.count(&dataset, None).0.unwrap().counts().clone();
    assert_eq!((counts.samples, counts.skipped), (3, 1));
    let example = counts.skipped_example.unwrap();
    assert!(example.contains(r#"c.csv: csv: no column "class""#), "{example}");
}

#[test]
fn appended_data_in_a_directory_is_read_once() {
    let dirs = DataDirs::new();
    fs::create_dir(dirs.path("set")).unwrap();
    let file = |name: &str| dirs.path("set").join(name);
    fs::write(file("large.txt"), lines(0, 40_000)).unwrap();
    fs::write(file("other.txt"), lines(0, 40_000)).unwrap();
    let dataset = dirs.dataset("set", DatasetFormat::Txt);
    let (first, all) = dirs.count(&dataset, None);
    let first = first.unwrap();
    assert_eq!(first.counts().samples, 80_000);

    let stored = serde_json::from_str(&serde_json::to_string(&first).unwrap()).unwrap();
    append(&file("large.txt"), lines(0, 10).as_bytes());
    let (second, read) = dirs.count(&dataset, Some(&stored));
    let second = second.unwrap();
    assert_eq!(second.counts().samples, 80_010);
    assert!(read < all / 100, "{read} of {all}");

    fs::remove_file(file("other.txt")).unwrap();
    let third = dirs.count(&dataset, Some(&second)).0.unwrap();
    assert_eq!(third, dirs.count(&dataset, None).0.unwrap());
    assert_eq!(third.counts().samples, 40_010);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn resumed_count_of_a_directory_equals_full_count(
        steps in proptest::collection::vec((0..3_u8, 0..4_u8, "[ab,\"\n]{0,40}"), 1..12),
        format in prop::sample::select(&[DatasetFormat::Csv, DatasetFormat::Txt][..]),
    ) {
        let dirs = DataDirs::new();
        fs::create_dir(dirs.path("set")).unwrap();
        let options = FormatOptions { header: false, ..FormatOptions::default() };
        let dataset = LocalDataset { options, ..dirs.dataset("set", format) };
        let mut state = None;
        for (action, file, text) in steps {
            let path = dirs.path("set").join(format!("{file}.{format}"));
            match action {
                0 => fs::write(&path, &text).unwrap(),
                1 => append(&path, text.as_bytes()),
                _ => drop(fs::remove_file(&path)),
            }
            let followed = dirs.count(&dataset, state.as_ref()).0.unwrap();
            let whole = dirs.count(&dataset, None).0.unwrap();
            prop_assert_eq!(followed.counts(), whole.counts());
            state = Some(followed);
        }
    }
}
