//! Tensors as bytes, of both transports of the Open Inference Protocol: their rows and their
//! numbers.

use neptune_cascade::rows::{Element, Rows, RowsError};

use super::{
    error::Malformed,
    scores::{Row, Scores},
};

/// The rows of a binary input; `None` if its type is unknown or it has no rows, which the model
/// server judges.
///
/// # Errors
/// The data do not fit the shape.
pub fn rows(
    name: &str,
    datatype: &str,
    shape: &[i64],
    data: &[u8],
) -> Result<Option<Rows>, Malformed> {
    let Some(element) = Element::from_datatype(datatype) else { return Ok(None) };
    match Rows::binary(data, shape, element) {
        Ok(rows) => Ok(Some(rows)),
        Err(RowsError::Shape(_)) => Ok(None),
        Err(problem) => Err(Malformed::Tensor { name: name.to_owned(), problem }),
    }
}

/// The numbers of a binary tensor; `None` if it has none.
pub fn numbers(datatype: &str, data: &[u8]) -> Option<Vec<f64>> {
    #[expect(clippy::cast_precision_loss, reason = "scores above 2^53 do not differ in confidence")]
    let number: fn(&[u8]) -> f64 = match datatype {
        "BOOL" | "UINT8" => |bytes| f64::from(bytes[0]),
        "INT8" => |bytes| f64::from(i8::from_le_bytes([bytes[0]])),
        "UINT16" => |bytes| f64::from(u16::from_le_bytes(array(bytes))),
        "INT16" => |bytes| f64::from(i16::from_le_bytes(array(bytes))),
        "UINT32" => |bytes| f64::from(u32::from_le_bytes(array(bytes))),
        "INT32" => |bytes| f64::from(i32::from_le_bytes(array(bytes))),
        "UINT64" => |bytes| u64::from_le_bytes(array(bytes)) as f64,
        "INT64" => |bytes| i64::from_le_bytes(array(bytes)) as f64,
        "FP16" => |bytes| half(u16::from_le_bytes(array(bytes))),
        "BF16" => {
            |bytes| f64::from(f32::from_bits(u32::from(u16::from_le_bytes(array(bytes))) << 16))
        }
        "FP32" => |bytes| f64::from(f32::from_le_bytes(array(bytes))),
        "FP64" => |bytes| f64::from_le_bytes(array(bytes)),
        _ => return None,
    };
    let Some(Element::Fixed(size)) = Element::from_datatype(datatype) else { return None };
    let chunks = data.chunks_exact(size);
    chunks.remainder().is_empty().then(|| chunks.map(number).collect())
}

/// The bytes of one element. Only called with slices of this length.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

/// Converts an IEEE 754 binary16 number.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
    }
}

/// Whether a tensor can have the scores of classes: numbers, at least two per row.
pub fn fits(datatype: &str, shape: &[i64]) -> bool {
    let per_row = shape.iter().skip(1).try_fold(1_i64, |product, size| product.checked_mul(*size));
    matches!(datatype, "FP16" | "BF16" | "FP32" | "FP64")
        && shape.len() > 1
        && per_row.is_some_and(|count| count > 1)
}

/// The scores of a tensor with these numbers; `None` if it has another number of rows.
pub fn scores(numbers: &[f64], shape: &[i64], rows: usize) -> Option<Scores> {
    if usize::try_from(*shape.first()?) != Ok(rows) || rows == 0 {
        return None;
    }
    let width = usize::try_from(*shape.last()?).ok()?;
    let per_row = numbers.len() / rows;
    if per_row * rows != numbers.len() {
        return None;
    }
    let row = |row: usize| Row { numbers: numbers[row * per_row..][..per_row].to_vec(), width };
    Some(Scores::new((0..rows).map(|index| Some(row(index))).collect()))
}

/// Such as `probabilities FP32 [-1,10]`.
pub fn described(name: &str, datatype: &str, shape: &[i64]) -> String {
    let sizes: Vec<String> = std::iter::once("-1".to_owned())
        .chain(shape.iter().skip(1).map(ToString::to_string))
        .collect();
    format!("{name} {datatype} [{}]", sizes.join(","))
}

/// The elements of `BYTES` without their lengths; `None` if the lengths do not fit.
pub fn texts(data: &[u8]) -> Option<Vec<&[u8]>> {
    let mut rest = data;
    let mut texts = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (text, after) = after.split_at_checked(length)?;
        texts.push(text);
        rest = after;
    }
    rest.is_empty().then_some(texts)
}

/// Appends an element of `BYTES`; `None` if it is too long for its length.
pub fn push_text(into: &mut Vec<u8>, text: &[u8]) -> Option<()> {
    into.extend_from_slice(&u32::try_from(text.len()).ok()?.to_le_bytes());
    into.extend_from_slice(text);
    Some(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]
    use super::*;

    #[test]
    fn numbers_of_all_types_are_little_endian() {
        for (datatype, data, expected) in [
            ("BOOL", &[1, 0][..], &[1.0, 0.0][..]),
            ("UINT8", &[200], &[200.0]),
            ("INT8", &[255], &[-1.0]),
            ("UINT16", &[0, 1], &[256.0]),
            ("INT16", &[255, 255], &[-1.0]),
            ("UINT32", &[0, 0, 1, 0], &[65_536.0]),
            ("INT32", &[254, 255, 255, 255], &[-2.0]),
            ("UINT64", &[1, 0, 0, 0, 0, 0, 0, 0], &[1.0]),
            ("INT64", &[255; 8], &[-1.0]),
            (
                "FP16",
                &[0, 0x3c, 0, 0xc0, 1, 0, 0, 0x7c],
                &[1.0, -2.0, 5.960_464_477_539_063e-8, f64::INFINITY],
            ),
            ("BF16", &[0x80, 0x3f], &[1.0]),
            ("FP32", &0.5_f32.to_le_bytes(), &[0.5]),
            ("FP64", &0.1_f64.to_le_bytes(), &[0.1]),
        ] {
            assert_eq!(numbers(datatype, data).unwrap(), expected, "{datatype}");
        }
        assert!(numbers("FP16", &[1, 0x7e]).unwrap()[0].is_nan());
        assert_eq!((numbers("FP32", &[0; 3]), numbers("BYTES", &[])), (None, None));
    }

    #[test]
    fn texts_are_read_as_they_are_written() {
        let mut data = Vec::new();
        for text in [&b"one"[..], b"", b"\xff"] {
            push_text(&mut data, text).unwrap();
        }
        assert_eq!(texts(&data).unwrap(), [&b"one"[..], b"", b"\xff"]);
        assert_eq!(texts(&data[..5]), None);
        assert_eq!(texts(&[255, 255, 255, 255, 1]), None);
    }

    #[test]
    fn large_shapes_do_not_fail() {
        assert!(!fits("FP32", &[1, i64::MAX, i64::MAX]));
        assert!(fits("FP32", &[1, 2]) && !fits("FP32", &[2]) && !fits("INT64", &[1, 2]));
        assert_eq!(described("p", "FP32", &[3, 10]), "p FP32 [-1,10]");
        let error = rows("x", "FP32", &[3, 1], &[0; 8]).unwrap_err().to_string();
        assert_eq!(error, "input \"x\": the data have length 8, but their shape requires 12");
        assert_eq!(rows("x", "FP8", &[3], &[0; 8]), Ok(None));
    }
}
