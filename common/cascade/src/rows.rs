//! Splits a batch by row, and merges the rows that the cloud answered into the edge's answer.
//!
//! A batch is a list of elements of which each row has consecutive ones: bytes of a binary tensor,
//! or values of a JSON list. [`Rows`] are the offsets of the rows. Nothing is converted: rows are
//! copied as slices.
//!
//! # Guarantees
//! - Selecting rows and merging them back gives the original, for any shape and element type.
//! - A list that does not fit its shape is refused; no index is out of bounds.

mod error;

use std::ops::Range;

pub use error::RowsError;

/// What the elements of a binary tensor are, in the Open Inference Protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// Elements of this many bytes.
    Fixed(usize),
    /// `BYTES`: a little-endian length of four bytes, and as many bytes.
    Bytes,
}

impl Element {
    /// The element of a data type such as `FP32` or `BYTES`; `None` if it is unknown.
    pub fn from_datatype(datatype: &str) -> Option<Self> {
        Some(match datatype {
            "BOOL" | "UINT8" | "INT8" => Self::Fixed(1),
            "UINT16" | "INT16" | "FP16" | "BF16" => Self::Fixed(2),
            "UINT32" | "INT32" | "FP32" => Self::Fixed(4),
            "UINT64" | "INT64" | "FP64" => Self::Fixed(8),
            "BYTES" => Self::Bytes,
            _ => return None,
        })
    }
}

/// The offsets of the rows of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows {
    /// Elements (of the tensor) per row, which rows of another list must have to be mixed.
    elements: usize,
    offsets: Offsets,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Offsets {
    Even {
        rows: usize,
        stride: usize,
    },
    /// Where each row begins, and where the last one ends.
    Listed(Vec<usize>),
}

impl Rows {
    /// The rows of a JSON list with one value per row (`nested`), which `instances` of TensorFlow
    /// Serving and nested `data` are.
    pub const fn nested(rows: usize) -> Self {
        Self { elements: 1, offsets: Offsets::Even { rows, stride: 1 } }
    }

    /// The rows of a flat JSON list of `len` values with this shape.
    ///
    /// # Errors
    /// [`RowsError::Shape`] and [`RowsError::Length`].
    pub fn flat(len: usize, shape: &[i64]) -> Result<Self, RowsError> {
        Self::even(len, shape, 1)
    }

    /// The rows of a binary tensor.
    ///
    /// # Errors
    /// [`RowsError::Shape`], [`RowsError::Length`] and [`RowsError::Bytes`].
    pub fn binary(data: &[u8], shape: &[i64], element: Element) -> Result<Self, RowsError> {
        match element {
            Element::Fixed(size) => Self::even(data.len(), shape, size),
            Element::Bytes => Self::of_bytes(data, shape),
        }
    }

    fn even(len: usize, shape: &[i64], size: usize) -> Result<Self, RowsError> {
        let (rows, elements) = dimensions(shape)?;
        let shape_error = || RowsError::Shape(shape.to_vec());
        let stride = elements.checked_mul(size).ok_or_else(shape_error)?;
        let expected = stride.checked_mul(rows).ok_or_else(shape_error)?;
        if len != expected {
            return Err(RowsError::Length { expected, actual: len });
        }
        Ok(Self { elements, offsets: Offsets::Even { rows, stride } })
    }

    fn of_bytes(data: &[u8], shape: &[i64]) -> Result<Self, RowsError> {
        let (rows, elements) = dimensions(shape)?;
        let total = rows.checked_mul(elements).ok_or_else(|| RowsError::Shape(shape.to_vec()))?;
        if total == 0 {
            let offsets = Offsets::Even { rows, stride: 0 };
            return if data.is_empty() {
                Ok(Self { elements, offsets })
            } else {
                Err(RowsError::Bytes)
            };
        }
        // Every element has four bytes at least, which limits the memory for offsets.
        if total > data.len() / 4 {
            return Err(RowsError::Bytes);
        }
        let mut offsets = Vec::with_capacity(rows + 1);
        let mut at = 0;
        for element in 0..total {
            if element % elements == 0 {
                offsets.push(at);
            }
            at = end_of_bytes(data, at).ok_or(RowsError::Bytes)?;
        }
        offsets.push(at);
        if at != data.len() {
            return Err(RowsError::Bytes);
        }
        Ok(Self { elements, offsets: Offsets::Listed(offsets) })
    }

    /// The number of rows.
    pub fn count(&self) -> usize {
        match &self.offsets {
            Offsets::Even { rows, .. } => *rows,
            Offsets::Listed(offsets) => offsets.len().saturating_sub(1),
        }
    }

    /// Where a row is in its list; empty for a row that does not exist.
    pub fn range(&self, row: usize) -> Range<usize> {
        match &self.offsets {
            Offsets::Even { rows, stride } if row < *rows => row * stride..(row + 1) * stride,
            Offsets::Listed(offsets) if row + 1 < offsets.len() => offsets[row]..offsets[row + 1],
            _ => 0..0,
        }
    }

    fn end(&self) -> usize {
        self.count().checked_sub(1).map_or(0, |last| self.range(last).end)
    }

    /// A copy of the selected rows of `list`, in order.
    ///
    /// # Errors
    /// [`RowsError::Selection`], and [`RowsError::Length`] if these are not the rows of `list`.
    pub fn select<T: Clone>(&self, list: &[T], selection: &Selection) -> Result<Vec<T>, RowsError> {
        self.check(list, selection)?;
        let mut selected = Vec::new();
        for row in &selection.chosen {
            selected.extend_from_slice(&list[self.range(*row)]);
        }
        Ok(selected)
    }

    /// The edge's `list` with the selected rows replaced by those of `cloud`, in order.
    ///
    /// # Errors
    /// As [`Rows::select`], and [`RowsError::Answered`] and [`RowsError::RowLength`] when the rows
    /// of the cloud cannot take their place.
    pub fn merge<T: Clone>(
        &self,
        list: &[T],
        selection: &Selection,
        cloud_rows: &Self,
        cloud: &[T],
    ) -> Result<Vec<T>, RowsError> {
        self.check(list, selection)?;
        cloud_rows.check_length(cloud)?;
        let (sent, answered) = (selection.chosen.len(), cloud_rows.count());
        if sent != answered {
            return Err(RowsError::Answered { sent, answered });
        }
        if self.elements != cloud_rows.elements && sent > 0 {
            let (edge, cloud) = (self.elements, cloud_rows.elements);
            return Err(RowsError::RowLength { edge, cloud });
        }
        let mut merged = Vec::with_capacity(list.len());
        let mut copied = 0;
        for (index, row) in selection.chosen.iter().enumerate() {
            let place = self.range(*row);
            merged.extend_from_slice(&list[copied..place.start]);
            merged.extend_from_slice(&cloud[cloud_rows.range(index)]);
            copied = place.end;
        }
        merged.extend_from_slice(&list[copied..]);
        Ok(merged)
    }

    fn check<T>(&self, list: &[T], selection: &Selection) -> Result<(), RowsError> {
        if selection.rows != self.count() {
            let (rows, selection) = (self.count(), selection.rows);
            return Err(RowsError::Selection { rows, selection });
        }
        self.check_length(list)
    }

    fn check_length<T>(&self, list: &[T]) -> Result<(), RowsError> {
        let (expected, actual) = (self.end(), list.len());
        if expected == actual { Ok(()) } else { Err(RowsError::Length { expected, actual }) }
    }
}

/// Rows chosen from a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    rows: usize,
    /// The chosen rows, in rising order.
    chosen: Vec<usize>,
}

impl Selection {
    /// Chooses the rows whose entry is true.
    pub fn new(is_chosen: &[bool]) -> Self {
        let chosen = is_chosen.iter().enumerate().filter(|(_, chosen)| **chosen);
        Self { rows: is_chosen.len(), chosen: chosen.map(|(row, _)| row).collect() }
    }

    /// The indexes of the chosen rows, in rising order.
    pub fn chosen(&self) -> &[usize] {
        &self.chosen
    }

    /// The shape of the chosen rows, for a batch of this shape.
    pub fn shape(&self, shape: &[i64]) -> Vec<i64> {
        let rows = i64::try_from(self.chosen.len()).unwrap_or(i64::MAX);
        std::iter::once(rows).chain(shape.iter().skip(1).copied()).collect()
    }
}

/// The number of rows that all inputs have, given names and shapes.
///
/// # Errors
/// [`RowsError::Shape`] without inputs or without rows, [`RowsError::Unequal`].
pub fn batch_size<'a>(
    inputs: impl IntoIterator<Item = (&'a str, &'a [i64])>,
) -> Result<usize, RowsError> {
    let mut first: Option<(&str, usize)> = None;
    for (name, shape) in inputs {
        let (rows, _) = dimensions(shape)?;
        match first {
            None => first = Some((name, rows)),
            Some((first, expected)) if expected != rows => {
                return Err(RowsError::Unequal {
                    first: (first.to_owned(), expected),
                    other: (name.to_owned(), rows),
                });
            }
            Some(_) => {}
        }
    }
    first.map(|(_, rows)| rows).ok_or_else(|| RowsError::Shape(Vec::new()))
}

/// The number of rows, and of elements per row.
fn dimensions(shape: &[i64]) -> Result<(usize, usize), RowsError> {
    let error = || RowsError::Shape(shape.to_vec());
    let mut sizes = shape.iter().map(|size| usize::try_from(*size).map_err(|_| error()));
    let rows = sizes.next().ok_or_else(error)??;
    let elements =
        sizes.try_fold(1_usize, |product, size| product.checked_mul(size?).ok_or_else(error))?;
    Ok((rows, elements))
}

/// The end of the `BYTES` element at `at`.
fn end_of_bytes(data: &[u8], at: usize) -> Option<usize> {
    let begin = at.checked_add(4)?;
    let length = u32::from_le_bytes(data.get(at..begin)?.try_into().ok()?);
    let end = begin.checked_add(usize::try_from(length).ok()?)?;
    (end <= data.len()).then_some(end)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn bytes(elements: &[&[u8]]) -> Vec<u8> {
        let encoded = |element: &&[u8]| {
            let length = u32::try_from(element.len()).unwrap().to_le_bytes();
            [&length, *element].concat()
        };
        elements.iter().flat_map(encoded).collect()
    }

    #[test]
    fn hard_rows_are_cut_out_and_put_back_by_index() {
        let edge: Vec<u8> = (0..12).collect();
        let rows = Rows::binary(&edge, &[4, 3], Element::Fixed(1)).unwrap();
        let hard = Selection::new(&[false, true, false, true]);
        assert_eq!(rows.select(&edge, &hard).unwrap(), [3, 4, 5, 9, 10, 11]);
        assert_eq!((hard.chosen(), hard.shape(&[4, 3])), (&[1, 3][..], vec![2, 3]));
        let cloud = [73, 74, 75, 79, 80, 81];
        let cloud_rows = Rows::binary(&cloud, &[2, 3], Element::Fixed(1)).unwrap();
        let merged = rows.merge(&edge, &hard, &cloud_rows, &cloud).unwrap();
        assert_eq!(merged, [0, 1, 2, 73, 74, 75, 6, 7, 8, 79, 80, 81]);
    }

    #[test]
    fn rows_of_strings_may_have_other_lengths_in_the_cloud() {
        let edge = bytes(&[b"one", b"", b"three", b"4"]);
        let rows = Rows::binary(&edge, &[2, 2], Element::Bytes).unwrap();
        let hard = Selection::new(&[true, false]);
        assert_eq!(rows.select(&edge, &hard).unwrap(), bytes(&[b"one", b""]));
        let cloud = bytes(&[b"a longer one", b"x"]);
        let cloud_rows = Rows::binary(&cloud, &[1, 2], Element::Bytes).unwrap();
        let merged = rows.merge(&edge, &hard, &cloud_rows, &cloud).unwrap();
        assert_eq!(merged, bytes(&[b"a longer one", b"x", b"three", b"4"]));
    }

    #[test]
    fn json_lists_are_split_nested_and_flat() {
        let nested = ["[1,2]", "[3,4]", "[5,6]"];
        let hard = Selection::new(&[false, false, true]);
        assert_eq!(Rows::nested(3).select(&nested, &hard).unwrap(), ["[5,6]"]);
        let flat = ["1", "2", "3", "4", "5", "6"];
        let rows = Rows::flat(6, &[3, 2]).unwrap();
        assert_eq!(rows.select(&flat, &hard).unwrap(), ["5", "6"]);
    }

    #[test]
    fn data_that_do_not_fit_their_shape_are_refused() {
        let fixed =
            |len: usize, shape: &[i64]| Rows::binary(&vec![0; len], shape, Element::Fixed(4));
        assert_eq!(fixed(8, &[3, 1]), Err(RowsError::Length { expected: 12, actual: 8 }));
        for shape in [&[][..], &[-1, 2], &[2, -1], &[2, i64::MAX, i64::MAX], &[i64::MAX, 4]] {
            assert_eq!(fixed(8, shape), Err(RowsError::Shape(shape.to_vec())));
        }
        let short = bytes(&[b"one"]);
        for (data, shape) in [
            (&short[..], &[2][..]),
            (&short[..6], &[1]),
            (&short[..2], &[1]),
            (&short, &[0]),
            (&[255, 255, 255, 255, 0], &[1]),
            (&short, &[1 << 40]),
            (&bytes(&[b"one", b"two"]), &[1]),
        ] {
            assert_eq!(
                Rows::binary(data, shape, Element::Bytes),
                Err(RowsError::Bytes),
                "{shape:?}"
            );
        }
    }

    #[test]
    fn no_rows_and_rows_without_elements_are_valid() {
        for (shape, element) in [
            ([0, 3], Element::Fixed(4)),
            ([3, 0], Element::Fixed(4)),
            ([0, 3], Element::Bytes),
            ([3, 0], Element::Bytes),
        ] {
            let rows = Rows::binary(&[], &shape, element).unwrap();
            let all = Selection::new(&vec![true; rows.count()]);
            assert_eq!(rows.count(), usize::try_from(shape[0]).unwrap());
            assert_eq!(rows.select::<u8>(&[], &all), Ok(vec![]));
            assert_eq!(rows.merge::<u8>(&[], &all, &rows, &[]), Ok(vec![]));
        }
    }

    #[test]
    fn rows_that_cannot_be_mixed_are_refused_with_the_reason() {
        let rows = Rows::flat(4, &[2, 2]).unwrap();
        let (edge, hard) = ([1, 2, 3, 4], Selection::new(&[true, false]));
        let error = |cloud_rows: &Rows, cloud: &[i32]| {
            rows.merge(&edge, &hard, cloud_rows, cloud).unwrap_err().to_string()
        };
        assert_eq!(
            error(&Rows::flat(4, &[2, 2]).unwrap(), &[0; 4]),
            "the cloud answered 2 rows instead of 1"
        );
        assert_eq!(
            error(&Rows::flat(3, &[1, 3]).unwrap(), &[0; 3]),
            "a row has 2 elements at the edge and 3 in the cloud: a request is answered by one of \
             them as a whole"
        );
        assert_eq!(
            error(&Rows::flat(2, &[1, 2]).unwrap(), &[0; 3]),
            "the data have length 3, but their shape requires 2"
        );
        assert_eq!(
            rows.select(&edge, &Selection::new(&[true])),
            Err(RowsError::Selection { rows: 2, selection: 1 })
        );
    }

    #[test]
    fn inputs_need_equal_numbers_of_rows() {
        let size = batch_size([("pixels", &[10, 64][..]), ("mask", &[9][..])]);
        assert_eq!(
            size.unwrap_err().to_string(),
            "input \"pixels\" has 10 rows, \"mask\" has 9: they have to be equal"
        );
        assert_eq!(batch_size([("pixels", &[10, 64][..]), ("mask", &[10][..])]), Ok(10));
        assert!(batch_size([]).is_err());
    }

    /// A tensor: data, shape, element type.
    fn tensors() -> impl Strategy<Value = (Vec<u8>, Vec<i64>, Element)> {
        let shapes = (0_i64..9, prop::collection::vec(0_i64..4, 0..3));
        let elements = prop_oneof![
            Just("BOOL"),
            Just("INT16"),
            Just("BF16"),
            Just("FP32"),
            Just("INT64"),
            Just("BYTES")
        ];
        (shapes, elements).prop_flat_map(|((rows, rest), datatype)| {
            let shape: Vec<i64> = std::iter::once(rows).chain(rest).collect();
            let total = usize::try_from(shape.iter().product::<i64>()).unwrap();
            let element = Element::from_datatype(datatype).unwrap();
            let data = match element {
                Element::Fixed(size) => prop::collection::vec(any::<u8>(), total * size).boxed(),
                Element::Bytes => {
                    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), total)
                        .prop_map(|all| bytes(&all.iter().map(Vec::as_slice).collect::<Vec<_>>()))
                        .boxed()
                }
            };
            data.prop_map(move |data| (data, shape.clone(), element))
        })
    }

    proptest! {
        #[test]
        fn split_and_merge_is_the_identity(
            (data, shape, element) in tensors(), mask in prop::collection::vec(any::<bool>(), 9),
        ) {
            let rows = Rows::binary(&data, &shape, element).unwrap();
            let hard = Selection::new(&mask[..rows.count()]);
            let sent = rows.select(&data, &hard).unwrap();
            let sent_rows = Rows::binary(&sent, &hard.shape(&shape), element).unwrap();
            prop_assert_eq!(rows.merge(&data, &hard, &sent_rows, &sent), Ok(data));
        }

        #[test]
        fn no_tensor_fails(
            data in prop::collection::vec(any::<u8>(), 0..40),
            shape in prop::collection::vec(prop_oneof![any::<i64>(), 0_i64..5], 0..4),
            mask in prop::collection::vec(any::<bool>(), 0..5),
        ) {
            for element in [Element::Fixed(0), Element::Fixed(4), Element::Bytes] {
                if let Ok(rows) = Rows::binary(&data, &shape, element) {
                    let _ = rows.select(&data, &Selection::new(&mask));
                }
            }
        }
    }
}
