//! The header of a `.npy` file: type, order and shape as a Python dict.

use std::io::Read;

use super::{DataType, WeightsError};

/// `NumPy` writes 118 bytes; only a structured type needs more.
const MAX_NPY_HEADER: u32 = 16 * 1024;
const MAGIC: &[u8; 6] = b"\x93NUMPY";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct NpyHeader {
    pub data_type: DataType,
    pub shape: Vec<u64>,
    pub fortran_order: bool,
    /// In bytes, with the magic before it.
    pub length: u64,
}

pub(super) fn read(content: &mut impl Read, tensor: &str) -> Result<NpyHeader, WeightsError> {
    let malformed = |problem: &str| WeightsError::npz(format!("array {tensor:?}: {problem}"));
    let mut start = [0; 8];
    content.read_exact(&mut start)?;
    if !start.starts_with(MAGIC) {
        return Err(malformed("no NumPy array"));
    }
    let mut length = [0; 4];
    let width = match start[6] {
        1 => 2,
        2 | 3 => 4,
        _ => return Err(malformed("unknown version of the .npy format")),
    };
    content.read_exact(&mut length[..width])?;
    let length = u32::from_le_bytes(length);
    if length > MAX_NPY_HEADER {
        return Err(malformed("the header is too long"));
    }
    let mut text = vec![0; length as usize];
    content.read_exact(&mut text)?;
    let text = std::str::from_utf8(&text).map_err(|_| malformed("the header is not text"))?;
    let header = parse(text).ok_or_else(|| malformed("the header is not that of an array"))?;
    let Some(data_type) = DataType::from_numpy(&header.descr) else {
        let problem = match header.descr.as_str() {
            "|O" => "Python objects are refused, because reading them runs code".to_owned(),
            descr if descr.starts_with('>') => "big-endian numbers; save them as '<'".to_owned(),
            descr => format!("type {descr:?} is not supported"),
        };
        return Err(WeightsError::Unsupported { tensor: tensor.to_owned(), problem });
    };
    let length = 8 + width as u64 + u64::from(length);
    let Dict { shape, fortran_order, .. } = header;
    Ok(NpyHeader { data_type, shape, fortran_order, length })
}

struct Dict {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// Parses `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`, keys in any order.
fn parse(text: &str) -> Option<Dict> {
    let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    while !rest.is_empty() {
        let (key, behind) = quoted(rest)?;
        let value = behind.trim_start().strip_prefix(':')?.trim_start();
        rest = match key {
            "descr" => {
                let (value, behind) = quoted(value)?;
                descr.replace(value.to_owned()).is_none().then_some(behind)?
            }
            "fortran_order" => {
                let is_true = value.starts_with("True");
                let behind = value.strip_prefix("True").or_else(|| value.strip_prefix("False"))?;
                fortran_order.replace(is_true).is_none().then_some(behind)?
            }
            "shape" => {
                let (value, behind) = value.strip_prefix('(')?.split_once(')')?;
                let sizes = value.split(',').map(str::trim).filter(|it| !it.is_empty());
                let sizes: Option<Vec<u64>> = sizes.map(|it| it.parse().ok()).collect();
                shape.replace(sizes?).is_none().then_some(behind)?
            }
            _ => return None,
        };
        rest = rest.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    Some(Dict { descr: descr?, fortran_order: fortran_order?, shape: shape? })
}

fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|it| matches!(it, '\'' | '"'))?;
    text[1..].split_once(quote)
}

/// Returns the header that `NumPy` writes for an array: version 1.0, a length that is a multiple of 64.
pub(super) fn header(data_type_name: &str, fortran_order: bool, shape: &[u64]) -> Vec<u8> {
    let order = if fortran_order { "True" } else { "False" };
    let sizes: Vec<_> = shape.iter().map(u64::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let mut dict = format!(
        "{{'descr': '{data_type_name}', 'fortran_order': {order}, 'shape': ({}{comma}), }}",
        sizes.join(", ")
    );
    let unpadded = 10 + dict.len() + 1;
    dict.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(64) - unpadded));
    dict.push('\n');
    let length = u16::try_from(dict.len()).unwrap_or(u16::MAX);
    [MAGIC, &[1, 0][..], &length.to_le_bytes(), dict.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn header_of_numpy_is_read_and_written_the_same() {
        // numpy.save of numpy.zeros((3, 4), "<f4"), NumPy 2.4.
        let mut numpy = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        numpy.extend(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }");
        numpy.resize(127, b' ');
        numpy.push(b'\n');
        let header = read(&mut &numpy[..], "w").unwrap();
        let expected = NpyHeader {
            data_type: DataType::F32,
            shape: vec![3, 4],
            fortran_order: false,
            length: 128,
        };
        assert_eq!(header, expected);
        assert_eq!(super::header("<f4", false, &[3, 4]), numpy);
    }

    #[test]
    fn shapes_of_each_rank_are_read_back() {
        for shape in [&[][..], &[7], &[1, 0, 3]] {
            let bytes = header("<f8", true, shape);
            let read = read(&mut &bytes[..], "w").unwrap();
            assert_eq!((read.shape.as_slice(), read.fortran_order), (shape, true));
            assert_eq!(read.length, bytes.len() as u64);
        }
    }

    #[test]
    fn other_headers_are_refused() {
        for text in [
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
            "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,), }",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
            "__import__('os')",
        ] {
            assert!(parse(text).is_none(), "{text}");
        }
        let objects = header("|O", false, &[1]);
        let error = read(&mut &objects[..], "w").unwrap_err().to_string();
        assert!(error.contains("Python objects are refused"), "{error}");
    }

    /// A header of version 2, in which the length has four bytes.
    fn of_version_2(length: u32) -> Vec<u8> {
        let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
        let text = format!("{dict:width$}", width = length as usize);
        [MAGIC, &[2, 0][..], &length.to_le_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn header_of_version_2_is_read_up_to_the_limit() {
        for length in [100, MAX_NPY_HEADER] {
            let header = read(&mut &of_version_2(length)[..], "w").unwrap();
            assert_eq!((header.shape, header.length), (vec![3], 12 + u64::from(length)));
        }
        let error = read(&mut &of_version_2(MAX_NPY_HEADER + 1)[..], "w").unwrap_err();
        assert!(error.to_string().contains("the header is too long"), "{error}");
        let mut version_4 = of_version_2(100);
        version_4[6] = 4;
        let error = read(&mut &version_4[..], "w").unwrap_err();
        assert!(error.to_string().contains("unknown version"), "{error}");
    }

    #[test]
    fn type_that_is_not_supported_is_named_with_its_remedy() {
        for (descr, problem) in [
            (">f4", "big-endian numbers; save them as '<'"),
            ("<c8", "type \"<c8\" is not supported"),
        ] {
            let error = read(&mut &header(descr, false, &[1])[..], "w").unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
