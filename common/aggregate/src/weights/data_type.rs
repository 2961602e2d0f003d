//! The element types of tensors: their names in both formats, and their values as f64.

use std::fmt;

use half::{bf16, f16};

/// The type of a tensor's elements. All are little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum DataType {
    F64,
    F32,
    F16,
    Bf16,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

use DataType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};

/// Type, name in safetensors, name in `NumPy`'s files (empty if `NumPy` has none), bytes.
const TYPES: [(DataType, &str, &str, usize); 13] = [
    (F64, "F64", "<f8", 8),
    (F32, "F32", "<f4", 4),
    (F16, "F16", "<f2", 2),
    (Bf16, "BF16", "", 2),
    (I64, "I64", "<i8", 8),
    (I32, "I32", "<i4", 4),
    (I16, "I16", "<i2", 2),
    (I8, "I8", "|i1", 1),
    (U64, "U64", "<u8", 8),
    (U32, "U32", "<u4", 4),
    (U16, "U16", "<u2", 2),
    (U8, "U8", "|u1", 1),
    (Bool, "BOOL", "|b1", 1),
];

impl DataType {
    /// Returns the type that safetensors name so.
    pub fn from_safetensors(name: &str) -> Option<Self> {
        TYPES.iter().find(|(_, known, ..)| *known == name).map(|(it, ..)| *it)
    }

    /// Returns the type that `NumPy`'s files name so (`descr`).
    pub fn from_numpy(name: &str) -> Option<Self> {
        let known = |known: &str| !known.is_empty() && known == name;
        TYPES.iter().find(|(_, _, numpy, _)| known(numpy)).map(|(it, ..)| *it)
    }

    /// Returns the bytes of an element.
    pub fn size(self) -> usize {
        TYPES.iter().find(|(it, ..)| *it == self).map_or(1, |(.., size)| *size)
    }

    /// Whether the elements are numbers with a fraction, which can be averaged.
    pub fn is_float(self) -> bool {
        matches!(self, F64 | F32 | F16 | Bf16)
    }

    /// Returns the name in `NumPy`'s files. `None` for a type that `NumPy` does not have.
    pub fn numpy(self) -> Option<&'static str> {
        let name = TYPES.iter().find(|(it, ..)| *it == self).map(|(_, _, name, _)| *name);
        name.filter(|name| !name.is_empty())
    }

    /// Reads floats of this type. `values` gets one value per element, exactly. Not for other types.
    pub fn decode(self, bytes: &[u8], values: &mut Vec<f64>) {
        values.clear();
        match self {
            F64 => values.extend(bytes.as_chunks().0.iter().map(|it| f64::from_le_bytes(*it))),
            F32 => {
                let elements = bytes.as_chunks().0.iter();
                values.extend(elements.map(|it| f64::from(f32::from_le_bytes(*it))));
            }
            F16 => {
                let elements = bytes.as_chunks().0.iter();
                values.extend(elements.map(|it| f16::from_le_bytes(*it).to_f64()));
            }
            Bf16 => {
                let elements = bytes.as_chunks().0.iter();
                values.extend(elements.map(|it| bf16::from_le_bytes(*it).to_f64()));
            }
            _ => {}
        }
    }

    /// Writes values as floats of this type, rounded once to nearest, ties to even. Not for other
    /// types.
    pub fn encode(self, values: &[f64], bytes: &mut Vec<u8>) {
        bytes.clear();
        match self {
            F64 => bytes.extend(values.iter().flat_map(|it| it.to_le_bytes())),
            #[allow(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
            F32 => bytes.extend(values.iter().flat_map(|it| (*it as f32).to_le_bytes())),
            F16 => bytes.extend(values.iter().flat_map(|it| f16::from_f64(*it).to_le_bytes())),
            Bf16 => bytes.extend(values.iter().flat_map(|it| bf16::from_f64(*it).to_le_bytes())),
            _ => {}
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TYPES.iter().find(|(it, ..)| it == self).map_or("", |(_, name, ..)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_foreign_ones_refused() {
        for (data_type, safetensors, numpy, size) in TYPES {
            assert_eq!(DataType::from_safetensors(safetensors), Some(data_type));
            assert_eq!(data_type.to_string(), safetensors);
            assert_eq!(data_type.size(), size);
            if !numpy.is_empty() {
                assert_eq!(DataType::from_numpy(numpy), Some(data_type));
            }
        }
        for foreign in ["", "|O", ">f4", "<c8", "<U3"] {
            assert_eq!(DataType::from_numpy(foreign), None, "{foreign}");
        }
        assert_eq!(DataType::from_safetensors("F8_E4M3"), None);
    }

    #[test]
    fn values_of_each_float_type_are_exact() {
        let (mut bytes, mut values) = (Vec::new(), Vec::new());
        for data_type in [F64, F32, F16, Bf16] {
            for expected in [0.0, -0.0, 1.5, -2.0, f64::INFINITY] {
                data_type.encode(&[expected, expected], &mut bytes);
                assert_eq!(bytes.len(), 2 * data_type.size());
                data_type.decode(&bytes, &mut values);
                assert_eq!(
                    values.iter().map(|it| it.to_bits()).collect::<Vec<_>>(),
                    [expected.to_bits(); 2]
                );
            }
        }
        F32.encode(&[1.0 + f64::from(f32::EPSILON) / 2.0], &mut bytes);
        assert_eq!(bytes, 1.0_f32.to_le_bytes(), "a tie is rounded to even");
    }
}
