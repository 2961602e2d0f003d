#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};

use proptest::prelude::*;

use super::*;
use crate::testing::{file, open, safetensors};

/// An archive of stored members with one content, which is in the file once.
fn archive(names: &[&str], content: &[u8]) -> Vec<u8> {
    let size = u32::try_from(content.len()).unwrap().to_le_bytes();
    let mut file = [b"PK\x03\x04\x14\0", &[0; 12][..], &size, &size, &[0; 4], content].concat();
    let at = u32::try_from(file.len()).unwrap().to_le_bytes();
    for name in names {
        let length = u16::try_from(name.len()).unwrap().to_le_bytes();
        let sizes = [&[0; 12][..], &size, &size, &length, &[0; 16]].concat();
        file.extend([b"PK\x01\x02\x14\0\x14\0", &sizes[..], name.as_bytes()].concat());
    }
    let directory = u32::try_from(file.len()).unwrap() - u32::from_le_bytes(at);
    file.extend([b"PK\x05\x06", &[0; 8][..], &directory.to_le_bytes(), &at, &[0; 2]].concat());
    file
}

/// Written by tests/data/make.py with `NumPy` 2.4.6 and safetensors 0.8.0.
const STORED: &[u8] = include_bytes!("../../tests/data/stored.npz");
const DEFLATED: &[u8] = include_bytes!("../../tests/data/deflated.npz");
const FORTRAN: &[u8] = include_bytes!("../../tests/data/fortran.npz");
const OBJECTS: &[u8] = include_bytes!("../../tests/data/objects.npz");
const SAFETENSORS: &[u8] = include_bytes!("../../tests/data/weights.safetensors");

fn data(weights: &Weights, name: &str) -> Vec<u8> {
    let tensor = weights.tensor(name).unwrap();
    let mut columns = Columns::open(&[weights], tensor, 8).unwrap();
    let (mut chunks, mut data) = (Vec::new(), Vec::new());
    while columns.next(&mut chunks).unwrap() {
        data.extend(&chunks[0]);
    }
    data
}

fn floats(weights: &Weights, name: &str) -> Vec<f64> {
    let mut values = Vec::new();
    weights.tensor(name).unwrap().data_type.decode(&data(weights, name), &mut values);
    values
}

fn copy(weights: &Weights) -> Vec<u8> {
    let output = file();
    let mut writer = WeightsWriter::create(output.try_clone().unwrap(), weights).unwrap();
    for tensor in weights.tensors() {
        writer.begin(tensor).unwrap();
        writer.write_all(&data(weights, &tensor.name)).unwrap();
    }
    writer.finish().unwrap();
    let mut bytes = Vec::new();
    let mut output = output;
    std::io::Seek::rewind(&mut output).unwrap();
    output.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn files_of_numpy_and_of_safetensors_have_the_same_tensors() {
    for bytes in [STORED, DEFLATED, SAFETENSORS] {
        let weights = open(bytes).unwrap();
        let shape = |name: &str| weights.tensor(name).unwrap().shape.clone();
        assert_eq!(weights.tensors().len(), 5);
        assert_eq!((shape("w1"), shape("b1"), shape("steps")), (vec![3, 4], vec![2], vec![]));
        assert_eq!(floats(&weights, "b1"), [0.5, -1.0]);
        assert_eq!(floats(&weights, "half"), [1.5, 2.5]);
        assert_eq!(floats(&weights, "w1")[10..], [10.0 / 8.0, 11.0 / 8.0]);
        assert_eq!(data(&weights, "steps"), 7_i64.to_le_bytes());
        assert_eq!(data(&weights, "used"), [1, 0]);
    }
    assert!(open(FORTRAN).unwrap().tensor("w1").unwrap().fortran_order);
}

#[test]
fn copy_of_a_file_has_its_layout_and_data() {
    assert_eq!(copy(&open(SAFETENSORS).unwrap()), SAFETENSORS);
    let from_stored = copy(&open(STORED).unwrap());
    assert_eq!(copy(&open(DEFLATED).unwrap()), from_stored, "compression leaves no trace");
    assert_eq!(copy(&open(&from_stored).unwrap()), from_stored);
}

#[test]
fn impossible_shape_with_reversed_offsets_is_refused() {
    let huge = r#""b":{"dtype":"U8","shape":[9223372036854775808,4],"data_offsets":[1,0]}"#;
    let header = format!(r#"{{"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},{huge}}}"#);
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[7]].concat();
    let error = open(&bytes).unwrap_err().to_string();
    assert!(error.contains("data_offsets of \"b\" do not match its shape"), "{error}");
}

#[test]
fn impossible_shape_with_a_header_behind_its_member_is_refused() {
    let array = super::npy::header("|u1", false, &[1 << 63, 4]);
    let mut bytes = archive(&["a.npy"], &array);
    assert!(open(&bytes).unwrap_err().to_string().contains("the size of \"a\""));
    // The directory gives the member 64 bytes.
    let entry = bytes.windows(4).rposition(|it| it == b"PK\x01\x02").unwrap();
    for at in [20, 24] {
        bytes[entry + at..entry + at + 4].copy_from_slice(&64_u32.to_le_bytes());
    }
    let error = open(&bytes).unwrap_err().to_string();
    assert!(error.contains("the size of \"a\" is not that of its shape"), "{error}");
}

#[test]
fn members_that_share_their_bytes_are_refused() {
    let array = [&super::npy::header("|u1", false, &[500])[..], &[1; 500]].concat();
    assert_eq!(open(&archive(&["a.npy"], &array)).unwrap().tensors().len(), 1);
    let error = open(&archive(&["a.npy", "b.npy", "c.npy"], &array)).unwrap_err().to_string();
    assert!(error.contains("the files in it overlap"), "{error}");
}

/// Sets bytes of the last record that begins with this signature.
fn patched(mut file: Vec<u8>, signature: &[u8], changes: &[(usize, &[u8])]) -> Vec<u8> {
    let record = file.windows(4).rposition(|it| it == signature).unwrap();
    for (at, bytes) in changes {
        file[record + at..record + at + bytes.len()].copy_from_slice(bytes);
    }
    file
}

#[test]
fn values_of_a_tensor_are_read_in_whole_up_to_the_maximum() {
    for bytes in [STORED, DEFLATED, SAFETENSORS] {
        let weights = open(bytes).unwrap();
        let tensor = weights.tensor("b1").unwrap();
        assert_eq!(weights.values(tensor, 2).unwrap(), [0.5, -1.0]);
        assert_eq!(weights.values(tensor, 100).unwrap(), [0.5, -1.0]);
        let error = weights.values(tensor, 1).unwrap_err();
        assert!(matches!(error, WeightsError::TooLarge { value: 2, limit: 1, .. }), "{error}");
    }
}

#[test]
fn member_of_an_archive_has_to_be_plain_and_within_the_file() {
    let array = [&super::npy::header("|u1", false, &[592])[..], &[1; 500]].concat();
    let refusal = |changes: &[(usize, &[u8])]| {
        open(&patched(archive(&["a.npy"], &array), b"PK\x01\x02", changes)).unwrap_err().to_string()
    };
    let size = |size: u32| size.to_le_bytes();
    for (changes, problem) in [
        (&[(8, &[1, 0][..])][..], "\"a.npy\" is encrypted"),
        (&[(10, &[12, 0])], "\"a.npy\" has compression method 12, not 0 or 8"),
        (&[(20, &size(3))], "\"a.npy\" has two different sizes"),
        (&[(42, &size(u32::MAX))], "\"a.npy\" is larger than 4 GiB: use safetensors"),
        (&[(42, &size(7))], "\"a.npy\" has no local header"),
        // The header and 592 bytes, of which the file has 500.
        (&[(20, &size(720)), (24, &size(720))], "\"a.npy\" ends behind the file"),
        (&[(10, &[8, 0]), (20, &size(1)), (24, &size(1033))], "\"a.npy\" inflates beyond 1032:1"),
    ] {
        let error = refusal(changes);
        assert!(error.contains(problem), "{error}");
    }
    let most = refusal(&[(10, &[8, 0]), (20, &size(1)), (24, &size(1032))]);
    assert!(!most.contains("inflates beyond"), "{most}");
    // Up to the end of the file, whose local header has 30 bytes.
    let length = u32::try_from(archive(&["a.npy"], &array).len()).unwrap() - 30;
    let longest = refusal(&[(20, &size(length)), (24, &size(length))]);
    assert!(longest.contains("is not that of its shape"), "{longest}");
}

#[test]
fn directory_of_an_archive_is_within_the_file_and_its_limit() {
    let array = [&super::npy::header("|u1", false, &[500])[..], &[1; 500]].concat();
    let refusal = |at: usize, bytes: &[u8]| {
        let file = patched(archive(&["a.npy"], &array), b"PK\x05\x06", &[(at, bytes)]);
        open(&file).unwrap_err().to_string()
    };
    let limit = u32::try_from(MAX_HEADER).unwrap();
    for (at, bytes, problem) in [
        (10, &[0xff, 0xff][..], "a ZIP64 directory"),
        (12, &u32::MAX.to_le_bytes(), "a ZIP64 directory"),
        (16, &u32::MAX.to_le_bytes(), "a ZIP64 directory"),
        (12, &(limit + 1).to_le_bytes(), "size of the central directory"),
        (12, &limit.to_le_bytes(), "ends behind its end record"),
        // One byte more than the entry, which is as long as 46 bytes and its name.
        (12, &52_u32.to_le_bytes(), "ends behind its end record"),
        (12, &50_u32.to_le_bytes(), "is cut off"),
        (12, &45_u32.to_le_bytes(), "is cut off"),
    ] {
        let error = refusal(at, bytes);
        assert!(error.contains(problem), "{problem}: {error}");
    }
}

#[test]
fn longest_header_of_safetensors_is_read() {
    let tensor = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let open_padded = |length: usize| {
        let header = format!("{tensor}{}", " ".repeat(length - tensor.len()));
        open(&[&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[7]].concat())
    };
    let limit = usize::try_from(MAX_HEADER).unwrap();
    assert_eq!(data(&open_padded(limit).unwrap(), "a"), [7]);
    let error = open_padded(limit + 1).unwrap_err();
    assert!(matches!(error, WeightsError::TooLarge { value: 1_048_577, .. }), "{error}");
}

#[test]
fn python_objects_are_refused() {
    let error = open(OBJECTS).unwrap_err().to_string();
    assert_eq!(error, "tensor \"w1\": Python objects are refused, because reading them runs code");
}

#[test]
fn other_files_are_refused() {
    for bytes in [&b""[..], b"{}", b"<html>", &[0; 100]] {
        assert!(matches!(open(bytes).unwrap_err(), WeightsError::UnknownFormat), "{bytes:?}");
    }
}

#[test]
fn headers_that_claim_too_much_are_refused_before_they_are_read() {
    let mut huge = (1_u64 << 40).to_le_bytes().to_vec();
    huge.extend(b"{}");
    let error = open(&huge).unwrap_err().to_string();
    assert!(error.contains("exceeds the limit of 1048576"), "{error}");
    huge[..8].copy_from_slice(&1000_u64.to_le_bytes());
    let error = open(&huge).unwrap_err().to_string();
    assert!(error.contains("the header ends behind the file"), "{error}");
}

#[test]
fn overlapping_duplicate_and_missing_data_is_malformed() {
    let tensor = |name: &str, from: u64, to: u64| {
        format!(r#""{name}":{{"dtype":"U8","shape":[{}],"data_offsets":[{from},{to}]}}"#, to - from)
    };
    let file = |tensors: &[String], data: usize| {
        let header = format!("{{{}}}", tensors.join(","));
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
    };
    for (tensors, data, problem) in [
        ([tensor("a", 0, 4), tensor("b", 2, 6)], 6, "overlaps"),
        ([tensor("a", 0, 4), tensor("b", 5, 6)], 6, "leaves a gap"),
        ([tensor("a", 0, 4), tensor("a", 4, 6)], 6, "duplicate tensor \"a\""),
        ([tensor("a", 0, 4), tensor("b", 4, 6)], 7, "end at byte"),
        ([tensor("a", 0, 4), tensor("b", 4, u64::MAX / 2)], 6, "end at byte"),
    ] {
        let error = open(&file(&tensors, data)).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    let wrong_shape =
        r#"{"a":{"dtype":"F32","shape":[4611686018427387904,9],"data_offsets":[0,4]}}"#;
    let error = open(&file(&[wrong_shape[1..wrong_shape.len() - 1].to_owned()], 4)).unwrap_err();
    assert!(error.to_string().contains("do not match its shape"), "{error}");
}

/// Opens a file and reads all of it. The outcome does not matter, only that there is one.
fn read_all(bytes: &[u8]) {
    let Ok(weights) = open(bytes) else { return };
    for tensor in weights.tensors() {
        let Ok(mut columns) = Columns::open(&[&weights], tensor, 1 << 16) else { return };
        let mut chunks = Vec::new();
        // An inflated tensor cannot be larger than 1032 times the file.
        for _ in 0..1032 {
            if !columns.next(&mut chunks).unwrap_or_default() {
                break;
            }
        }
    }
}

proptest! {
    #[test]
    fn damaged_files_never_panic(
        original in prop::sample::select(vec![STORED, DEFLATED, FORTRAN, SAFETENSORS]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = original.to_vec();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_all(&bytes);
    }

    #[test]
    fn any_bytes_behind_a_known_start_never_panic(
        start in prop::sample::select(vec![&b"PK\x05\x06"[..], b"PK\x01\x02", b"\x40\0\0\0\0\0\0\0{"]),
        rest in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        read_all(&[start, &rest].concat());
    }
}

#[test]
fn names_of_any_kind_survive_a_copy() {
    let tensor = |name: &str| (name.to_owned(), DataType::U8, vec![1], vec![1]);
    let bytes = safetensors(&[tensor("layer.0/weight"), tensor("ä \" \\"), tensor("")]);
    let weights = open(&bytes).unwrap();
    assert_eq!(weights.tensors().len(), 3);
    assert_eq!(copy(&weights), bytes);
}
