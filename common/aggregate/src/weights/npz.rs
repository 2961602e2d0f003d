//! A `.npz` file of `numpy.savez` or `savez_compressed`: a ZIP archive with one `.npy` file per array.
//! Formats: APPNOTE.TXT of PKWARE (4.3), and `numpy.lib.format`.

use std::{collections::BTreeSet, fs::File, os::unix::fs::FileExt};

use super::{Location, MAX_HEADER, MAX_TENSORS, Tensor, WeightsError, npy, reader};

const END_OF_DIRECTORY: [u8; 4] = *b"PK\x05\x06";
const ENTRY: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";
/// The end record and the longest comment behind it.
const MAX_END: u64 = 22 + 65_535;
/// Deflate cannot exceed 1032:1 (zlib's documentation); a hostile member is stopped at this.
const MAX_RATIO: u64 = 1032;

/// Reads the directory and the header of each array. The tensors are in the order of the directory.
pub(super) fn read(file: &File, length: u64) -> Result<Vec<Tensor>, WeightsError> {
    let directory = directory(file, length)?;
    let (mut tensors, mut names) = (Vec::new(), BTreeSet::new());
    let (mut rest, mut used) = (&directory[..], 0_u64);
    while !rest.is_empty() {
        if tensors.len() == MAX_TENSORS {
            let what = "number of arrays";
            let limit = MAX_TENSORS as u64;
            return Err(WeightsError::TooLarge { what, value: limit + 1, limit });
        }
        let (member, behind) = Member::parse(rest)?;
        rest = behind;
        let Some(name) = member.name.strip_suffix(".npy") else {
            return Err(WeightsError::npz(format!("{:?} is not an .npy file", member.name)));
        };
        if !names.insert(name.to_owned()) {
            return Err(WeightsError::npz(format!("duplicate array {name:?}")));
        }
        // Members that share their bytes would inflate to many times the file.
        used += member.compressed;
        if used > length {
            return Err(WeightsError::npz("the files in it overlap"));
        }
        tensors.push(member.tensor(file, length, name)?);
    }
    Ok(tensors)
}

fn directory(file: &File, length: u64) -> Result<Vec<u8>, WeightsError> {
    let start = length.saturating_sub(MAX_END);
    let mut end = vec![0; usize::try_from(length - start).expect("it is at most MAX_END")];
    file.read_exact_at(&mut end, start)?;
    let at = end.windows(22).rposition(|it| it.starts_with(&END_OF_DIRECTORY));
    let at = at.ok_or_else(|| WeightsError::npz("no end of the central directory"))?;
    let record = &end[at..];
    let (entries, size, offset) = (u16_at(record, 10), u32_at(record, 12), u32_at(record, 16));
    if entries == u16::MAX || size == u32::MAX || offset == u32::MAX {
        let what = "a ZIP64 directory (more than 65,534 arrays, or 4 GiB): use safetensors";
        return Err(WeightsError::npz(what));
    }
    if u64::from(size) > MAX_HEADER {
        let what = "size of the central directory of a .npz file";
        return Err(WeightsError::TooLarge { what, value: size.into(), limit: MAX_HEADER });
    }
    if u64::from(offset) + u64::from(size) > start + at as u64 {
        return Err(WeightsError::npz("the central directory ends behind its end record"));
    }
    let mut directory = vec![0; size as usize];
    file.read_exact_at(&mut directory, offset.into())?;
    Ok(directory)
}

struct Member {
    name: String,
    is_deflated: bool,
    /// Position of the local header in the file.
    offset: u64,
    compressed: u64,
    uncompressed: u64,
}

impl Member {
    fn parse(directory: &[u8]) -> Result<(Self, &[u8]), WeightsError> {
        if directory.len() < 46 || !directory.starts_with(&ENTRY) {
            return Err(WeightsError::npz("the central directory is cut off"));
        }
        let (flags, method) = (u16_at(directory, 8), u16_at(directory, 10));
        let variable = [28, 30, 32].map(|at| usize::from(u16_at(directory, at)));
        let end = 46 + variable.iter().sum::<usize>();
        if directory.len() < end {
            return Err(WeightsError::npz("the central directory is cut off"));
        }
        let name = String::from_utf8(directory[46..46 + variable[0]].to_vec());
        let name = name.map_err(|_| WeightsError::npz("a file name is not UTF-8"))?;
        let problem = match (flags & 1, method) {
            (1, _) => Some("is encrypted".to_owned()),
            (_, 0 | 8) => None,
            (_, other) => Some(format!("has compression method {other}, not 0 or 8")),
        };
        if let Some(problem) = problem {
            return Err(WeightsError::npz(format!("{name:?} {problem}")));
        }
        let (compressed, uncompressed) = (u32_at(directory, 20), u32_at(directory, 24));
        let offset = u32_at(directory, 42);
        if [compressed, uncompressed, offset].contains(&u32::MAX) {
            let problem = "is larger than 4 GiB: use safetensors";
            return Err(WeightsError::npz(format!("{name:?} {problem}")));
        }
        let member = Self {
            name,
            is_deflated: method == 8,
            offset: offset.into(),
            compressed: compressed.into(),
            uncompressed: uncompressed.into(),
        };
        if !member.is_deflated && member.compressed != member.uncompressed {
            return Err(WeightsError::npz(format!("{:?} has two different sizes", member.name)));
        }
        if member.uncompressed > member.compressed.saturating_mul(MAX_RATIO) {
            let problem = format!("{:?} inflates beyond {MAX_RATIO}:1", member.name);
            return Err(WeightsError::npz(problem));
        }
        Ok((member, &directory[end..]))
    }

    fn tensor(&self, file: &File, length: u64, name: &str) -> Result<Tensor, WeightsError> {
        let mut local = [0; 30];
        file.read_exact_at(&mut local, self.offset)?;
        if !local.starts_with(&LOCAL) {
            return Err(WeightsError::npz(format!("{:?} has no local header", self.name)));
        }
        let variable = u64::from(u16_at(&local, 26)) + u64::from(u16_at(&local, 28));
        let at = self.offset + 30 + variable;
        if at + self.compressed > length {
            return Err(WeightsError::npz(format!("{:?} ends behind the file", self.name)));
        }
        let mut content = if self.is_deflated {
            reader::TensorReader::inflate(file, at, self.compressed, 0)?
        } else {
            reader::TensorReader::raw(file, at)
        };
        let header = npy::read(&mut content, name)?;
        let location = if self.is_deflated {
            Location::Deflated { at, compressed: self.compressed, skip: header.length }
        } else {
            Location::Raw { at: at + header.length }
        };
        let tensor = Tensor {
            name: name.to_owned(),
            data_type: header.data_type,
            shape: header.shape,
            fortran_order: header.fortran_order,
            location,
        };
        // An impossible shape has no size, and neither has a member that its header exceeds.
        let size = self.uncompressed.checked_sub(header.length);
        if size.is_none() || tensor.bytes() != size {
            return Err(WeightsError::npz(format!(
                "the size of {name:?} is not that of its shape"
            )));
        }
        Ok(tensor)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
