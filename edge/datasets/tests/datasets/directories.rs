//! Counts directories of images and of annotations.

use std::{fs, os::unix::fs::symlink};

use neptune_datasets::DatasetFormat;

use crate::{DataDirs, annotation};

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
