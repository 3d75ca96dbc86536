-- SHA-256 of a text, in hexadecimal digits (FIPS 180-4).

local band, bnot, bxor, ror, rshift, tohex = bit.band, bit.bnot, bit.bxor, bit.ror, bit.rshift, bit.tohex

local Round = {
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
  0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
  0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
  0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
  0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
  0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
  0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
  0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
}

local function block(state, text, start)
  local w = {}
  for i = 1, 16 do
    local a, b, c, d = string.byte(text, start + i * 4 - 4, start + i * 4 - 1)
    w[i] = a * 16777216 + b * 65536 + c * 256 + d
  end
  for i = 17, 64 do
    local x, y = w[i - 15], w[i - 2]
    local low = bxor(ror(x, 7), ror(x, 18), rshift(x, 3))
    local high = bxor(ror(y, 17), ror(y, 19), rshift(y, 10))
    w[i] = bit.tobit(w[i - 16] + low + w[i - 7] + high)
  end
  local a, b, c, d, e, f, g, h = unpack(state)
  for i = 1, 64 do
    local first = h + bxor(ror(e, 6), ror(e, 11), ror(e, 25)) + bxor(band(e, f), band(bnot(e), g)) + Round[i] + w[i]
    local second = bxor(ror(a, 2), ror(a, 13), ror(a, 22)) + bxor(band(a, b), band(a, c), band(b, c))
    h, g, f, e, d, c, b, a = g, f, e, bit.tobit(d + first), c, b, a, bit.tobit(first + second)
  end
  for i, part in ipairs({a, b, c, d, e, f, g, h}) do state[i] = bit.tobit(state[i] + part) end
end

local function sha256(text)
  local bits = #text * 8
  local last = string.char(0, 0, 0, 0, band(rshift(bits, 24), 255), band(rshift(bits, 16), 255), band(rshift(bits, 8), 255), band(bits, 255))
  text = text .. "\128" .. string.rep("\0", (55 - #text) % 64) .. last
  local state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}
  for start = 1, #text, 64 do block(state, text, start) end
  local digest = ""
  for i = 1, 8 do digest = digest .. tohex(state[i]) end
  return digest
end

