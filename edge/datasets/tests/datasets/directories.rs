//! Directories of images and of annotations.

use std::{fs, os::unix::fs::symlink};

use neptune_datasets::Format;

use crate::{Place, annotation};

#[test]
fn images_are_counted_by_extension_in_all_directories_below() {
    let place = Place::new();
    fs::create_dir_all(place.path("set/cats/deep")).unwrap();
    for name in [
        "a.jpg",
        "b.JPEG",
        "cats/c.png",
        "cats/deep/d.webp",
        "readme.txt",
        "cats/e.jpg.part",
        "noextension",
    ] {
        fs::write(place.path("set").join(name), "12345").unwrap();
    }
    fs::create_dir(place.path("set/directory.jpg")).unwrap();
    let tally = place.count(&place.spec("set", Format::Images), None).0.unwrap().tally().clone();
    assert_eq!((tally.samples, tally.bytes, tally.skipped), (4, 20, 0));
}

#[test]
fn links_in_a_directory_are_followed_to_files_as_far_as_they_stay_within() {
    let place = Place::new();
    fs::create_dir(place.path("set")).unwrap();
    fs::write(place.path("real.png"), "1").unwrap();
    fs::write(place.outside("out.png"), "1").unwrap();
    symlink(place.path("real.png"), place.path("set/in.png")).unwrap();
    symlink(place.outside("out.png"), place.path("set/out.png")).unwrap();
    symlink(place.path("none.png"), place.path("set/dangling.png")).unwrap();
    symlink(place.path("set"), place.path("set/loop")).unwrap();
    let tally = place.count(&place.spec("set", Format::Images), None).0.unwrap().tally().clone();
    assert_eq!((tally.samples, tally.skipped), (1, 1));
    assert!(tally.skipped_example.unwrap().contains("out.png"));
}

#[test]
fn annotations_are_counted_with_their_classes_and_only_changed_ones_are_read_again() {
    let place = Place::new();
    fs::create_dir_all(place.path("voc/Annotations")).unwrap();
    let file = |name: &str| place.path("voc/Annotations").join(name);
    for n in 0..300 {
        fs::write(
            file(&format!("{n}.xml")),
            annotation(if n % 3 == 0 { "helmet" } else { "head" }),
        )
        .unwrap();
    }
    fs::write(file("broken.xml"), "<annotation><object>").unwrap();
    let spec = place.spec("voc", Format::Xml);
    let (first, all) = place.count(&spec, None);
    let first = first.unwrap();
    let tally = first.tally();
    assert_eq!((tally.samples, tally.skipped), (300, 1));
    assert_eq!((tally.labels.by_name["helmet"], tally.labels.by_name["head"]), (100, 200));
    assert!(tally.skipped_example.as_ref().unwrap().contains("broken.xml"));

    let stored = serde_json::from_str(&serde_json::to_string(&first).unwrap()).unwrap();
    fs::write(file("new.xml"), annotation("vest")).unwrap();
    fs::write(file("0.xml"), annotation("head")).unwrap();
    fs::remove_file(file("3.xml")).unwrap();
    fs::write(file("broken.xml"), annotation("head")).unwrap();
    let (second, read) = place.count(&spec, Some(&stored));
    let second = second.unwrap();
    assert_eq!(second, place.count(&spec, None).0.unwrap());
    let labels = &second.tally().labels.by_name;
    assert_eq!((labels["helmet"], labels["head"], labels["vest"]), (98, 202, 1));
    assert_eq!((second.tally().samples, second.tally().skipped), (301, 0));
    assert!(read < all / 10, "{read} of {all}");

    let (third, read) = place.count(&spec, Some(&second));
    assert_eq!((third.unwrap(), read), (second, 0));
}
